"""Sampled softmax: each user's own item against the other items of the batch (Yi et al. 2019, section 3)."""

# N samples, D dimension, B samples of a block, R rows of scores
import torch
from torch import Tensor


def in_batch_softmax(
    users_ND: Tensor,
    items_ND: Tensor,
    ids_N: Tensor,
    log_probabilities_N: Tensor,
    weights_N: Tensor,
    *,
    temperature: float,
    block: int,
) -> Tensor:
    """Return the sum of cross-entropies times weights, float32.

    A sample of weight 0 learns nothing as a user, and its item is a negative for the others. Items come into a batch as
    often as they come in the stream: subtracting the logarithm of that probability makes the popular ones no more
    negative than the others. Another sample's equal item is no negative. `block`: so many samples see each other's
    items, which bounds memory and time.
    """
    columns = (users_ND, items_ND, ids_N, log_probabilities_N, weights_N)
    blocks = [slice(start, start + block) for start in range(0, len(ids_N), block)]
    return torch.stack(
        [_block_loss(*(column[rows] for column in columns), temperature=temperature) for rows in blocks]
    ).sum()


def _block_loss(
    users_BD: Tensor,
    items_BD: Tensor,
    ids_B: Tensor,
    log_probabilities_B: Tensor,
    weights_B: Tensor,
    *,
    temperature: float,
) -> Tensor:
    own_B = torch.arange(len(ids_B), device=ids_B.device)
    if not users_BD.is_cuda:  # where that costs no wait for a device: only the rows that learn
        learning = weights_B.nonzero()[:, 0]
        users_BD, weights_B, own_R = users_BD[learning], weights_B[learning], own_B[learning]
    else:
        own_R = own_B
    scores_RB = users_BD.float() @ items_BD.float().T / temperature - log_probabilities_B
    is_same_RB = (ids_B[own_R, None] == ids_B) & (own_R[:, None] != own_B)
    log_shares_RB = scores_RB.masked_fill(is_same_RB, -torch.inf).log_softmax(dim=1)
    return -(weights_B * log_shares_RB.gather(1, own_R[:, None])[:, 0]).sum()

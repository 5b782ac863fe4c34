"""The same small training script with nn.Embedding and with DynamicEmbedding."""

import torch
from torch import nn

from springtide import DynamicEmbedding

NUM_IDS, DIM, BATCH = 200, 8, 32


class Ratings(nn.Module):
    """A user's row, the mean of some items' rows, and a net above."""

    def __init__(self, users: nn.Module, items: nn.Module) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.net = nn.Sequential(nn.Linear(2 * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.users(users), self.items(items).mean(1)], 1)
        logits: torch.Tensor = self.net(rows)[:, 0]
        return logits


def test_a_training_script_gives_the_same_model_with_either_embedding() -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(NUM_IDS, DIM) * 0.1 for _ in range(2)]
    static = Ratings(*(nn.Embedding.from_pretrained(matrix.clone(), freeze=False) for matrix in matrices))
    sgd = {"name": "sgd", "lr": 0.1}
    dynamic = Ratings(*(DynamicEmbedding.from_pretrained(matrix, optimizer=sgd) for matrix in matrices))
    dynamic.net.load_state_dict(static.net.state_dict())
    steps = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (static, dynamic)]

    first: list[float] = []
    for epoch in range(3):
        losses = [0.0, 0.0]
        generator = torch.Generator().manual_seed(1)
        for _ in range(100):
            users = torch.randint(0, NUM_IDS, (BATCH,), generator=generator)
            items = torch.randint(0, NUM_IDS, (BATCH, 3), generator=generator)
            labels = ((users + items[:, 0]) % 2).float()
            for number, (model, optimizer) in enumerate(steps):
                loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[number] += loss.item() / 100
        assert abs(losses[0] - losses[1]) < 1e-6
        first = first or losses
        assert epoch == 0 or losses[1] < first[1]

    ids = torch.arange(NUM_IDS)
    for one, other in ((static.users, dynamic.users), (static.items, dynamic.items)):
        assert isinstance(one, nn.Embedding)
        assert isinstance(other, DynamicEmbedding)
        rows, status = other.lookup(ids)
        assert (status == 0).all()
        assert (rows - one.weight.detach()).abs().max() < 1e-6
    torch.testing.assert_close(dynamic.net[0].weight, static.net[0].weight, rtol=0, atol=1e-6)
    static.eval()
    dynamic.eval()
    users, items = torch.arange(50), torch.arange(150).reshape(50, 3)
    torch.testing.assert_close(dynamic(users, items), static(users, items), rtol=0, atol=1e-5)

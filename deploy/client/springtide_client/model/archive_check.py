"""Accept only torch.export archives that are pure data: they come from another host, and loading must not run code.

`torch.export.load` unpickles sample inputs, legacy weights and custom objects, opens compiled libraries, evaluates
symbolic shapes as Python and resolves any name in `torch`. So everything but plain tensors and plain operators is
refused. Knows the file layout of torch 2.9 and later (torch/export/pt2_archive).
"""

import io
import re
import zipfile
from typing import Any

import msgspec

from springtide_client.errors import LogError

_PLAIN_FILES = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id|alignment)"
    r"|models/model\.json|data/(weights|constants)/model_(weights|constants)_config\.json"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
)
_SAMPLE_INPUTS = re.compile(r"data/sample_inputs/.*")
# operators of a graph; a pattern for all of `torch.*` would allow `torch.load`, all of `_operator.*` attribute access
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|torch\.sym_\w+|torch\._sym_\w+|math\.\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem)"
)
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),.<>=!&|~]*")
_SYMBOL = re.compile(r"Symbol\('[a-z]{1,3}\d+'(, \w+=(True|False))*\)")
# size symbols and the functions that torch prints into an expression
_WORD = re.compile(
    r"\d+|[a-z]{1,3}\d+|Symbol|Add|Mul|Pow|Rational|Float|oo|int_oo|True|False|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Max|Min|Mod|Integer|Abs|Piecewise"
    r"|FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|CeilDiv|CeilToInt|FloorToInt|IntTrueDiv|FloatTrueDiv|FloatPow"
    r"|PowByNatural|TruncToInt|TruncToFloat|RoundToInt|RoundDecimal|ToFloat|Identity"
)


def check_archive(archive: bytes) -> None:
    """Raise LogError unless the archive holds one program of plain operators, plain tensors, and nothing else."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            _check_files(files)
    except (zipfile.BadZipFile, msgspec.DecodeError, UnicodeDecodeError, EOFError) as error:
        raise LogError(f"the model's archive cannot be read: {error}") from None


def _check_files(files: zipfile.ZipFile) -> None:
    names = files.namelist()
    inner = [name.partition("/")[2] for name in names]
    if len(set(inner)) != len(inner) or len({name.partition("/")[0] for name in names}) != 1:
        raise LogError("the model's archive names a file twice")
    for name, path in zip(names, inner, strict=True):
        if _SAMPLE_INPUTS.fullmatch(path):
            if files.getinfo(name).file_size:
                raise LogError("the model's archive holds pickled sample inputs: save it with example_inputs = None")
        elif not _PLAIN_FILES.fullmatch(path):
            raise LogError(f"the model's archive holds {path!r}: only plain weights and one program are accepted")
        elif path.endswith("_config.json"):
            _check_payloads(msgspec.json.decode(files.read(name)))
        elif path == "models/model.json":
            _check_program(msgspec.json.decode(files.read(name)))


def _check_payloads(config: Any) -> None:
    for name, payload in config["config"].items():
        if payload["use_pickle"] is not False:
            raise LogError(f"the model's archive holds {name!r} pickled: only plain tensors are accepted")


def _check_program(node: Any) -> None:
    """Check every operator and every size expression of the program; all other strings are only names."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "target" and isinstance(value, str) and "inputs" in node and not _TARGET.fullmatch(value):
                raise LogError(f"the model's program calls {value!r}: only torch's own operators are accepted")
            if key == "expr_str":
                _check_expression(value)
            elif key == "range_constraints":
                for symbol in value:
                    _check_expression(symbol)
            _check_program(value)
    elif isinstance(node, list):
        for value in node:
            _check_program(value)


def _check_expression(expression: Any) -> None:
    plain = _SYMBOL.sub("s0", str(expression))
    if not _EXPRESSION.fullmatch(plain) or not all(_WORD.fullmatch(word) for word in re.findall(r"\w+", plain)):
        raise LogError(
            f"the model's program holds the size {str(expression)[:80]!r}: only plain arithmetic is accepted"
        )

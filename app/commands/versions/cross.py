"""`springtide versions show --cross`: what a version has learned of two ids together."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide.app.version_log.read.index import LogIndex


def show_cross(index: "LogIndex", number: int, keys: list[str], *, as_json: bool) -> int:
    """Print what a version has learned of two ids together."""
    from dataclasses import asdict

    from springtide.app.commands.formatting import format_number, format_time, print_json
    from springtide.app.errors import UserError
    from springtide.app.version_log.inspection.crosses import find_cross
    from springtide.app.version_log.read.row_image import RowImage
    from springtide_client.format.records import version_name

    named = []
    for key in keys:
        field, equals, text = key.partition("=")
        if not equals:
            raise UserError(f"--cross {key}: write FIELD=ID twice, such as user_id=7 genre=war")
        named.append((field, text))
    cross = find_cross(RowImage(index, number), named)
    if as_json:
        print_json({"version": number, "name": version_name(number), **asdict(cross)})
        return 0
    texts = dict(named)
    shown = " x ".join(
        f"{field}={texts.get(field, row_id)}" for field, row_id in zip(cross.fields, cross.ids, strict=True)
    )
    live = "" if cross.is_live else f"; crosses of {' x '.join(cross.fields)} are not learned at present"
    print(f"{shown} at version {version_name(number)}{live}")
    if cross.reason:
        print(f"  {cross.reason}")
        return 0
    for weight in cross.weights:
        what = f"weight {format_number(weight.weight)}, information {format_number(weight.information)}"
        print(f"  {weight.label:<9} {what}")
    print(f"  seen      {cross.count:,} times, last at {format_time(cross.last_seen_ms or 0)}")
    return 0

import msgspec
import pytest

from springtide.app.serving.http.route import Routes, RouteTable


class Answer(msgspec.Struct):
    text: str


async def describe(request, name: str):
    """Something"""


async def undescribed(request, name: str):
    pass


@pytest.mark.parametrize(
    ("declaration", "endpoint", "says"),
    [
        ({}, undescribed, "docstring"),
        ({"scope": "reader"}, describe, "no scope 'reader'"),
        ({"path": "v1/{name}"}, describe, "slash"),
        ({"path": "/v1/{name}/{other}"}, describe, "does not take other"),
        ({"method": "POST"}, describe, "request body"),
        ({"request": Answer}, describe, "request body"),
        ({"errors": (404, 418)}, describe, "lacks 418"),
    ],
)
def test_an_incomplete_declaration_raises_where_it_stands(declaration, endpoint, says):
    complete = {"method": "GET", "path": "/v1/{name}", "scope": "read", "response": Answer}
    Routes("Tests").add(**complete)(describe)
    with pytest.raises(ValueError, match=says):
        Routes("Tests").add(**complete | declaration)(endpoint)
    with pytest.raises(TypeError):
        Routes("Tests").add("GET", "/v1/{name}")  # neither scope nor response


def test_all_routes_of_a_place_have_one_scope():
    tests = Routes("Tests")
    tests.add("GET", "/v1/{name}", scope="read", response=Answer)(describe)
    assert RouteTable([tests]).scope_of("/v1/5") == "read"
    tests.add("POST", "/v1/{name}", scope="admin", request=Answer, response=Answer)(describe)
    with pytest.raises(ValueError, match="another route of this place"):
        RouteTable([tests])

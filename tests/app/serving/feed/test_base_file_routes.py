USER = 0


def test_a_base_is_sent_file_by_file(world):
    world.log.start_epoch()
    world.log.publish({(USER, 1): [1, 2, 3, 4]})
    path = world.log.write_base()
    client = world.serve()
    world.served(client, world.log.number)
    latest = client.get("/v1/bases/latest")
    assert latest.content == (path / "manifest.json").read_bytes()
    etag = latest.headers["etag"]
    assert client.get("/v1/bases/latest", headers={"if-none-match": etag}).status_code == 304
    number = latest.json()["number"]
    for name, facts in latest.json()["files"].items():
        file = client.get(f"/v1/bases/{number}/files/{name}")
        assert file.content == (path / name).read_bytes()
        assert len(file.content) == facts["bytes"]
        part = client.get(
            f"/v1/bases/{number}/files/{name}", headers={"range": "bytes=3-", "if-range": file.headers["etag"]}
        )
        assert (part.status_code, part.content) == (206, file.content[3:])
        head = client.head(f"/v1/bases/{number}/files/{name}")
        assert (head.headers["content-length"], head.content) == (str(facts["bytes"]), b"")
    (path / "secret").write_text("not in the manifest")
    assert client.get(f"/v1/bases/{number}/files/manifest.json").json() == latest.json()
    assert client.get(f"/v1/bases/{number}/files/secret").status_code == 404
    assert client.get(f"/v1/bases/{number}/files/..%2f..%2fmanifest.json").status_code == 404
    assert client.get("/v1/bases/5/files/manifest.json").status_code == 410

def test_pages_load_nothing_from_other_servers(world):
    client = world.serve()
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "").replace("http:%2F%2Fwww.w3.org", "")
        assert "https://" not in page.text
    routes = client.get("/openapi.json").json()["paths"]
    assert "/v1/predict" in routes
    assert routes["/v1/predict"]["post"]["summary"] == "Score instances"

import pytest

from tokshard.core.path_mapping import PathMapping


@pytest.mark.parametrize(
    ("pairs", "path", "expected"),
    [
        ((), "/data/web", "/data/web"),
        ((("/data", "/mnt"),), "/data/web", "/mnt/web"),
        ((("/data", "/mnt"),), "/data", "/mnt"),
        ((("/data/", "/mnt/"),), "/data/web", "/mnt/web"),
        ((("/data/", "/mnt"),), "/data", "/mnt"),
        ((("/data", "/mnt"),), "/database/web", "/database/web"),
        ((("/data", "/mnt"), ("/data/web", "/fast")), "/data/web/a", "/fast/a"),
        ((("/data/web", "/fast"), ("/data", "/mnt")), "/data/webs", "/mnt/webs"),
        ((("/data", "/first"), ("/data/", "/second")), "/data/web", "/first/web"),
        ((("/", "/mnt"),), "/data/web", "/mnt/data/web"),
        ((("/data", "/"),), "/data/web", "/web"),
        ((("s3://bucket/v1", "/data"),), "s3://bucket/v1/web", "/data/web"),
        ((("/data", "s3://bucket"),), "/data/web", "s3://bucket/web"),
        ((("out", "/data"),), "out//web", "/data//web"),
    ],
)
def test_the_longest_whole_directory_is_replaced(pairs, path, expected):
    assert PathMapping(pairs).map(path) == expected


def test_the_inverse_leads_back():
    mapping = PathMapping((("out", "/data/v1"), ("/cache", "/data/v1/cache")))
    for path in ("out/web", "/cache/web", "elsewhere"):
        assert mapping.inverse().map(mapping.map(path)) == path

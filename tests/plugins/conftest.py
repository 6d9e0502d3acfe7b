import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder with the example distributions installed by pip."""
    work = tmp_path_factory.mktemp("distributions")
    sources = [work / name for name in ("acme-gdn", "twin-gdn")]
    for source in sources:  # copied, because building leaves files behind
        shutil.copytree(HERE / source.name, source)
    target = work / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", target, *sources], check=True)
    return target


@pytest.fixture
def installed(site, monkeypatch):
    """The example distributions, installed for this test."""
    monkeypatch.syspath_prepend(site)
    yield site
    for name in [name for name in sys.modules if name.split(".")[0] in ("acme_gdn", "twin_gdn")]:
        del sys.modules[name]

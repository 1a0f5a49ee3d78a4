"""huggingface_hub against the tests' own hub of models: the client says whether that is one."""

import hashlib
import os
import pathlib
import tempfile

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from setting import check

SOURCE = pathlib.Path(os.environ["MODEL_DIRECTORY"])
COMMIT = os.environ["MODEL_COMMIT"]

# Of what arrives before a connection breaks the client keeps whole chunks.
constants.DOWNLOAD_CHUNK_SIZE = 100_000


def content(directory):
    files = [file for file in pathlib.Path(directory).rglob("*") if file.is_file()]
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def download(model, **options):
    with tempfile.TemporaryDirectory() as cache:
        directory = pathlib.Path(snapshot_download(model, cache_dir=cache, **options))
        return directory.name, content(directory)


def refused(status, error, model, **options):
    try:
        download(model, **options)
    except error as raised:
        assert raised.response.status_code == status, raised
    else:
        raise AssertionError(f"no {error.__name__} for {model}")


@check
def is_told_of_what_a_model_consists():
    for revision in ["main", COMMIT]:
        info = HfApi().model_info("rooflet/open", revision=revision, files_metadata=True)
        assert info.sha == COMMIT and info.id == "rooflet/open" and not info.gated
        files = content(SOURCE)
        assert {file.rfilename: file.size for file in info.siblings} == {
            name: len(text) for name, text in files.items()
        }
        [large] = [file for file in info.siblings if file.lfs]
        weights = files[large.rfilename]
        assert large.rfilename == "model.safetensors"
        assert large.lfs.sha256 == hashlib.sha256(weights).hexdigest() and large.lfs.size == len(weights)


@check
def has_every_file_although_the_connection_breaks():
    assert download("rooflet/open") == (COMMIT, content(SOURCE))
    assert download("rooflet/open", revision=COMMIT) == (COMMIT, content(SOURCE))


@check
def is_refused_what_is_not_for_everybody():
    refused(401, GatedRepoError, "rooflet/gated")
    refused(403, GatedRepoError, "rooflet/gated", token="hf_other")
    # Of 401 the client makes RepositoryNotFoundError only where the hub speaks https.
    refused(401, HfHubHTTPError, "rooflet/private")
    refused(404, RepositoryNotFoundError, "rooflet/private", token="hf_other")
    for model in ["rooflet/gated", "rooflet/private"]:
        assert download(model, token="hf_secret") == (COMMIT, content(SOURCE))


@check
def is_told_what_there_is_not():
    refused(401, HfHubHTTPError, "rooflet/none")
    refused(404, RepositoryNotFoundError, "rooflet/none", token="hf_other")
    refused(404, RevisionNotFoundError, "rooflet/open", revision="v2")
    try:
        HfApi().hf_hub_download("rooflet/open", "none.json")
    except EntryNotFoundError:
        return
    raise AssertionError("a file that is not there")

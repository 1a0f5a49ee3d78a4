"""Runs huggingface_hub against the hub of the tests, to verify that the hub behaves like Hugging
Face's hub."""

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

# When a connection breaks, the client keeps only complete chunks.
constants.DOWNLOAD_CHUNK_SIZE = 100_000


def content(directory):
    files = [file for file in pathlib.Path(directory).rglob("*") if file.is_file()]
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def download(model, **options):
    with tempfile.TemporaryDirectory() as cache:
        directory = pathlib.Path(snapshot_download(model, cache_dir=cache, **options))
        return directory.name, content(directory)


def expect_error(status, error, model, **options):
    try:
        download(model, **options)
    except error as raised:
        assert raised.response.status_code == status, raised
    else:
        raise AssertionError(f"no {error.__name__} for {model}")


@check
def model_info_lists_files_with_size_and_hash():
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
def downloads_every_file_despite_a_broken_connection():
    assert download("rooflet/open") == (COMMIT, content(SOURCE))
    assert download("rooflet/open", revision=COMMIT) == (COMMIT, content(SOURCE))


@check
def gated_and_private_models_require_a_token():
    expect_error(401, GatedRepoError, "rooflet/gated")
    expect_error(403, GatedRepoError, "rooflet/gated", token="hf_other")
    # The client maps 401 to RepositoryNotFoundError only over HTTPS.
    expect_error(401, HfHubHTTPError, "rooflet/private")
    expect_error(404, RepositoryNotFoundError, "rooflet/private", token="hf_other")
    for model in ["rooflet/gated", "rooflet/private"]:
        assert download(model, token="hf_secret") == (COMMIT, content(SOURCE))


@check
def missing_models_revisions_and_files_are_errors():
    expect_error(401, HfHubHTTPError, "rooflet/none")
    expect_error(404, RepositoryNotFoundError, "rooflet/none", token="hf_other")
    expect_error(404, RevisionNotFoundError, "rooflet/open", revision="v2")
    try:
        HfApi().hf_hub_download("rooflet/open", "none.json")
    except EntryNotFoundError:
        return
    raise AssertionError("no EntryNotFoundError for a missing file")

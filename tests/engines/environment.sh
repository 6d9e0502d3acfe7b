#!/usr/bin/env bash
# environment.sh VENV WHEELS: makes the virtual environment VENV with SGLang 0.5.23 for a machine without a GPU, if
# it doesn't exist yet. Then installs the wheels of the folder WHEELS. ENGINE_TORCH and PYTHON are as in the Makefile.
set -euo pipefail
venv=$1 wheels=$2 torch=${ENGINE_TORCH:-torch==2.13.0}
pip() { "$venv/bin/python" -m pip "$@" --disable-pip-version-check; }
install() { pip install --quiet --no-compile "$@"; }
if [ ! -f "$venv/engine" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -c 'import torch' 2>/dev/null || install "$torch"
  # These are the packages that the engine imports on a CPU. Its other requirements need a GPU or gigabytes.
  install transformers==5.19.0 pydantic
  install --no-deps sglang==0.5.23 triton==3.7.1 torchvision==0.28.0 \
    aiohappyeyeballs aiohttp aiosignal anyio apache-tvm-ffi==0.1.11 attrs certifi compressed-tensors==0.18.0 dill distro einops \
    fastapi frozenlist gguf httpcore httpx idna ipython jiter loguru msgspec multidict numpy openai==2.8.0 opentelemetry-api \
    orjson packaging partial-json-parser pillow propcache psutil pybase64 pygments pyzmq requests sentencepiece setproctitle \
    setuptools sniffio starlette tqdm traitlets urllib3 uvicorn uvloop xgrammar yarl
  install pytest
  pip check >"$venv/missing" || true # the requirements of the engine itself that were left out
  touch "$venv/engine"
fi
install ninja # builds SGLang's extension for n-gram drafts at its first use
install --no-deps --force-reinstall "$wheels"/*.whl
new=$(pip check | grep -vxFf "$venv/missing" | grep -v '^No broken requirements found' || true)
if [ -n "$new" ]; then
  printf 'the wheels do not fit the environment of the engine:\n%s\n' "$new" >&2
  exit 1
fi

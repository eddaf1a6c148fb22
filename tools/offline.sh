#!/usr/bin/env bash
# Set fugu up on a machine without a network that has Python and torch, then run a command there:
#   tools/offline.sh pytest -m gpu
# Needs the folder wheels/ beside the sources; `make wheels` fills it for another Python: make wheels WHEEL_PYTHON=3.12
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-offline
if [ ! -e $venv/.ready ]; then
  python3 -m venv $venv
  # torch and numpy are those of the python3 found here, which may itself live in a virtual environment
  python3 -c 'import site; print("\n".join(site.getsitepackages()))' > "$(echo $venv/lib/python*/site-packages)/outer.pth"
  pip="$venv/bin/pip --disable-pip-version-check"
  $pip install --quiet --no-index --no-deps wheels/*.whl
  PATH="$PWD/$venv/bin:$PATH" $pip install --quiet --no-index --no-build-isolation --no-deps --editable .
  touch $venv/.ready
fi
PATH="$PWD/$venv/bin:$PATH" "$@"

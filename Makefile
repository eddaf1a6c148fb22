# `make train` and `make test` set everything up on a machine with Python 3.11+ and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
SOURCES := $(wildcard native/* native/envs/*) CMakeLists.txt pyproject.toml constraints.txt

.PHONY: wheels train test test-slow test-learning test-extras test-cluster test-nethack test-gpu sanitize lint bench clean

train: $(VENV)/.show  ## train CartPole, with a dashboard; ends with the next commands to try
	$(BIN)/fugu train cartpole

test: $(VENV)/.test  ## the everyday suite
	$(BIN)/python -m pytest

test-slow: $(VENV)/.test  ## what takes longer than a few seconds
	$(BIN)/python -m pytest -m "slow and not gpu and not extras and not cluster"

test-learning: $(VENV)/.extras  ## what takes many minutes to train, five seeds of most
	$(BIN)/python -m pytest -m learning

test-extras: $(VENV)/.extras  ## environments nobody here wrote: Atari, MuJoCo, MiniGrid, PettingZoo
	$(BIN)/python -m pytest -m "extras and not gpu"

test-cluster: $(VENV)/.cluster  ## several learners, and a Ray cluster that is started for it
	$(BIN)/python -m pytest -m cluster

test-nethack: .venv-nethack/.ready  ## NLE pins an older Gymnasium, so it lives apart
	.venv-nethack/bin/python -m pytest tests/thirdparty -m extras -k "nethack"

# Without the one test that looks at malloc, which is the sanitizer's own there.
SANITIZED := -m "not gpu and not extras and not learning and not cluster" \
  tests/spaces/test_pack.py tests/advantage tests/envs tests/contract tests/security/test_native_state.py \
  $(addprefix tests/ops/test_,advantage.py advantage_oracles.py lstm.py mlp.py native.py ppo_loss.py sample.py) \
  --deselect tests/ops/test_native.py::test_kept_memory_is_not_fetched_from_the_system_again
sanitize: .venv-sanitize/.ready  ## the tests of the compiled core, with the address and undefined-behaviour sanitizers in it
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc \
	  .venv-sanitize/bin/python -m pytest --timeout 600 --capture sys $(SANITIZED)

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.peers  ## every speed claim, with its competitors
	$(BIN)/python benchmarks/vector.py --out benchmarks/results/vector.json
	$(BIN)/python benchmarks/native.py --out benchmarks/results/native.json
	$(BIN)/python benchmarks/advantage.py --out benchmarks/results/advantage.json
	$(BIN)/python benchmarks/train.py --out benchmarks/results/train.json
	$(BIN)/python benchmarks/predict.py --out benchmarks/results/predict.json
	$(BIN)/python benchmarks/sac.py pendulum speed --out benchmarks/results/sac.json
	$(BIN)/python benchmarks/replay.py --out benchmarks/results/replay.json
	$(BIN)/python benchmarks/dreamer_speed.py --out benchmarks/results/dreamer_speed.json

clean:
	rm -rf $(VENV) .venv-nethack .venv-sanitize build dist .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade -c constraints.txt pip

# One stamp per set of packages: nothing is installed twice, and a change of the native sources builds them anew.
$(VENV)/.core: $(BIN)/python $(SOURCES)
	$(PIP) install --quiet -c constraints.txt --editable .
	touch $@

# what fugu plot and fugu video need, which come next
$(VENV)/.show: $(VENV)/.core
	$(PIP) install --quiet -c constraints.txt "fugu-rl[plot,video]"
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) install --quiet -c constraints.txt --group test
	touch $@

$(VENV)/.lint: $(VENV)/.core
	$(PIP) install --quiet -c constraints.txt --group lint
	touch $@

$(VENV)/.extras: $(VENV)/.test
	$(PIP) install --quiet -c constraints.txt "fugu-rl[envs,tokens,memory]" --group extras
	touch $@

$(VENV)/.cluster: $(VENV)/.test
	$(PIP) install --quiet -c constraints.txt --group cluster
	touch $@

$(VENV)/.peers: $(VENV)/.test
	$(PIP) install --quiet -c constraints.txt "fugu-rl[peers]"
	touch $@

.venv-nethack/.ready: $(SOURCES)
	$(PYTHON) -m venv .venv-nethack
	.venv-nethack/bin/pip install --quiet --upgrade pip
	.venv-nethack/bin/pip install --quiet "nle>=1.3" minihack "setuptools<81" psutil cloudpickle pytest pytest-timeout pytest-rerunfailures
	.venv-nethack/bin/pip install --quiet --no-deps --editable .
	touch $@

# Only fugu itself is there twice; everything else comes from the ordinary environment.
.venv-sanitize/.ready: $(VENV)/.test $(SOURCES)
	$(PYTHON) -m venv .venv-sanitize
	$(BIN)/python -c "import sys; print(*(p for p in sys.path if p.endswith('site-packages')), sep='\n')" \
	  > "$$(.venv-sanitize/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ordinary.pth"
	.venv-sanitize/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	  -C cmake.define.FUGU_SANITIZE=ON -C cmake.build-type=RelWithDebInfo -C build-dir=build/sanitize .
	touch $@

WHEEL_PYTHON ?= 3.12
wheels: $(BIN)/python  ## what tools/offline.sh needs on a machine without a network
	$(PIP) download --quiet --dest wheels --only-binary=:all: --python-version $(WHEEL_PYTHON) --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform any \
	  --requirement tools/offline.txt
	rm -f wheels/numpy-* wheels/scipy-* wheels/mujoco_studio-*  # the first is there already, nothing here needs the others

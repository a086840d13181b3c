# Sourced by ci/test and ci/demo: goes to the repository root and builds xtask, which does the rest.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v cargo >/dev/null; then
    echo "$0: cargo is not on PATH; install Rust first, README.md says which version" >&2
    echo "0 passed, 1 failed"
    exit 1
fi
# Edition 2024 needs 1.85; what CI uses is 1.95.
version=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n' 1.85 "$version" | sort -V | head -1)" != 1.85 ]; then
    echo "$0: cargo $version is too old; install Rust 1.95 with rustup" >&2
    echo "0 passed, 1 failed"
    exit 1
fi
if ! command -v cc >/dev/null; then
    if [ "$(id -u)" != 0 ]; then
        echo "$0: there is no C compiler; install one first: sudo apt-get install gcc libc6-dev" >&2
        echo "0 passed, 1 failed"
        exit 1
    fi
    echo "apt-get install gcc libc6-dev ..."
    apt-get -q update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends gcc libc6-dev >/dev/null
fi
echo "building xtask ..."
cargo build --quiet --package xtask

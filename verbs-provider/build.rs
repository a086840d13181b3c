//! Link arguments of the shared object libibverbs loads.

fn main() {
    let map = format!(
        "{}/provider.map",
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default()
    );
    println!("cargo:rerun-if-changed={map}");
    // libibverbs keeps pointers into it for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    // `tests/uverbs.rs` answers what libibverbs writes.
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=write");
}

//! Link arguments of the shared object libfabric loads.

fn main() {
    let map = format!(
        "{}/provider.map",
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default()
    );
    println!("cargo:rerun-if-changed={map}");
    // libfabric unloads providers at exit; the device's threads and thread-local destructors outlive that.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
}

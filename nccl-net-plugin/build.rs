//! Link arguments of the shared object NCCL loads.

fn main() {
    let map = format!(
        "{}/plugin.map",
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default()
    );
    println!("cargo:rerun-if-changed={map}");
    // NCCL unloads plugins after the last communicator; the device's threads and thread-local destructors outlive that.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
}

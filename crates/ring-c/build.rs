//! Gives the library its soname: programs record that, and a release that breaks them has another.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libusb4ring.so.0");
    // A thread's last error, and what the standard library keeps for it, outlive a dlclose() otherwise.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

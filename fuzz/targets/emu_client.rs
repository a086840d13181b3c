#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("emu_client", usb4_fuzz::emu_client::seeds),
    |data: &[u8]| usb4_fuzz::emu_client::run(data)
);

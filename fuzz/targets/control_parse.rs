#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("control_parse", usb4_fuzz::control_parse::seeds),
    |data: &[u8]| usb4_fuzz::control_parse::run(data)
);

#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("rail_control", usb4_fuzz::rail_control::seeds),
    |data: &[u8]| usb4_fuzz::rail_control::run(data)
);

#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("frame_parse", usb4_fuzz::frame_parse::seeds),
    |data: &[u8]| usb4_fuzz::frame_parse::run(data)
);

#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("link_events", usb4_fuzz::link_events::seeds),
    |data: &[u8]| usb4_fuzz::link_events::run(data)
);

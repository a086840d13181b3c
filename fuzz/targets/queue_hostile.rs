#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("queue_hostile", usb4_fuzz::queue_hostile::seeds),
    |data: &[u8]| usb4_fuzz::queue_hostile::run(data)
);

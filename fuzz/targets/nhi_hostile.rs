#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("nhi_hostile", usb4_fuzz::nhi_hostile::seeds),
    |data: &[u8]| usb4_fuzz::nhi_hostile::run(data)
);

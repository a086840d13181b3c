#![no_main]
libfuzzer_sys::fuzz_target!(
    init: usb4_fuzz::init("verbs_hostile", usb4_fuzz::verbs_hostile::seeds),
    |data: &[u8]| usb4_fuzz::verbs_hostile::run(data)
);

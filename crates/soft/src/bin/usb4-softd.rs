//! Serves a detached soft device: `usb4-softd NAME [HOST]`. Started by its first client, ends with its last.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (fabric, host) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [fabric] if !fabric.starts_with('-') => (fabric, "0"),
        [fabric, host] if !fabric.starts_with('-') => (fabric, host),
        _ => {
            eprintln!(
                "usage: usb4-softd NAME [HOST]\nServes the soft device that clients open as soft:NAME,detached[=HOST]."
            );
            return ExitCode::from(2);
        }
    };
    match usb4_soft::serve_in_background(fabric, host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-softd: {error}");
            ExitCode::FAILURE
        }
    }
}

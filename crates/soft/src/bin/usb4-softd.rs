//! Serves a detached soft device. Started by its first client, ends with its last.

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "usage: usb4-softd [--foreground] NAME [HOST] | --help | --version
Serves the soft device that clients open as soft:NAME,detached[=HOST], in the background unless told otherwise.
It ends when its last client has gone, or when none comes within ten seconds.";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let foreground = arguments.first().is_some_and(|first| first == "--foreground");
    if foreground {
        arguments.remove(0);
    }
    let (fabric, host) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => return say(USAGE),
        ["--version" | "-V"] => return say(concat!("usb4-softd ", env!("CARGO_PKG_VERSION"))),
        [fabric] if !fabric.starts_with('-') => (fabric, "0"),
        [fabric, host] if !fabric.starts_with('-') => (fabric, host),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let served = if foreground {
        usb4_soft::Server::bind(fabric, host).and_then(usb4_soft::Server::run)
    } else {
        usb4_soft::serve_in_background(fabric, host)
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-softd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

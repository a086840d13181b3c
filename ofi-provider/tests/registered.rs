//! All that is tested of messages, over a device that reaches only registered memory, as the kernel module does.

#[path = "messages.rs"]
mod messages;

//! Control messages that wait for the home to take them.

use usb4_wire::ControlKind;

/// Messages that can wait; the control channel is lossy, and so is this queue when the home does not empty it.
const ROOM: usize = 4;

/// What differs from one message to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) kind: ControlKind,
    pub(super) tag: u64,
    pub(super) nonce: u64,
    pub(super) join: u64,
    pub(super) echo: u64,
    pub(super) reason: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outbox {
    messages: [Option<Message>; ROOM],
}

impl Outbox {
    pub(super) fn push(&mut self, message: Message) {
        if let Some(free) = self.messages.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(message);
        }
    }

    /// The oldest message.
    pub(super) fn pop(&mut self) -> Option<Message> {
        let oldest = self.messages.first_mut()?.take();
        self.messages.rotate_left(1);
        oldest
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

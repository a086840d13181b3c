//! Received frames the link holds: counted by the parked chunks and plans that refer to them.

use crate::list::{Linked, List, OUT, at_mut};
use crate::{RxToken, Slab};

/// State of one RX token.
#[derive(Debug)]
pub struct Token {
    link: u32,
    refs: u32,
}

impl Default for Token {
    fn default() -> Self {
        Self { link: OUT, refs: 0 }
    }
}

impl Linked<0> for Token {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.link
    }
}

/// All tokens of a link.
#[derive(Debug)]
pub(crate) struct Tokens {
    slab: Slab<Token>,
    released: List<0>,
    held: u32,
}

impl Tokens {
    pub(crate) fn new(mut slab: Slab<Token>) -> Self {
        for token in slab.iter_mut() {
            *token = Token::default();
        }
        Self {
            slab,
            released: List::default(),
            held: 0,
        }
    }

    pub(crate) fn into_slab(self) -> Slab<Token> {
        self.slab
    }

    /// Tokens held or released and not taken back yet.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// A frame is being looked at. False for a token that does not exist or is held already: a fault of the
    /// home.
    #[inline]
    pub(crate) fn open(&mut self, token: RxToken) -> bool {
        match at_mut(&mut self.slab, token.0) {
            Some(state) if state.refs == 0 && state.link == OUT => {
                state.refs = 1;
                self.held = self.held.wrapping_add(1);
                true
            }
            _ => false,
        }
    }

    /// The frame has been looked at. True if something refers to it, so that it will come back as released.
    #[inline]
    pub(crate) fn close(&mut self, token: RxToken) -> bool {
        let Some(state) = at_mut(&mut self.slab, token.0) else {
            return false;
        };
        state.refs = state.refs.wrapping_sub(1);
        let held = state.refs != 0;
        if !held {
            self.held = self.held.wrapping_sub(1);
        }
        held
    }

    /// One more refers to the frame.
    #[inline]
    pub(crate) fn hold(&mut self, token: RxToken) {
        if let Some(state) = at_mut(&mut self.slab, token.0) {
            state.refs = state.refs.wrapping_add(1);
        }
    }

    /// One less refers to the frame.
    #[inline(always)]
    pub(crate) fn drop_ref(&mut self, token: RxToken) {
        let slab: &mut [Token] = &mut self.slab;
        let Some(state) = at_mut(slab, token.0) else {
            return;
        };
        state.refs = state.refs.wrapping_sub(1);
        if state.refs == 0 {
            self.released.push(slab, token.0);
        }
    }

    /// The next frame buffer that is free again.
    #[inline]
    pub(crate) fn next_released(&mut self) -> Option<RxToken> {
        let index = self.released.pop(&mut self.slab)?;
        self.held = self.held.wrapping_sub(1);
        Some(RxToken(index))
    }
}

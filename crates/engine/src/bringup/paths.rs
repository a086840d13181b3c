//! The paths of a rail, which the home switches on and off at its own pace: one order at a time.

/// What the home has been told to do, and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Off,
    Enabling(u32),
    On(u32),
    Disabling,
}

/// An order to the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathOrder {
    Enable(u32),
    Disable,
}

/// How the home's answer leaves things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathResult {
    /// As expected, or an answer to nothing.
    Fine,
    /// The paths could not be enabled.
    Failed,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paths {
    state: State,
    /// The peer's HopID the paths should use; `None`: off.
    want: Option<u32>,
    /// Off and on again, though the HopID is right.
    cycle: bool,
}

impl Paths {
    /// The paths are wanted to the peer's `hop`. `afresh`: what is on now led to something else.
    pub(super) fn want_on(&mut self, hop: u32, afresh: bool) {
        self.want = Some(hop);
        if afresh && matches!(self.state, State::On(_)) {
            self.cycle = true;
        }
    }

    pub(super) fn want_off(&mut self) {
        self.want = None;
        self.cycle = false;
    }

    /// Whether the paths are on as wanted.
    pub(super) fn ready(&self) -> bool {
        match (self.state, self.want) {
            (State::On(hop), Some(wanted)) => hop == wanted && !self.cycle,
            _ => false,
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.state == State::Off
    }

    /// The next order, once the last one is carried out.
    pub(super) fn take_order(&mut self) -> Option<PathOrder> {
        match (self.state, self.want) {
            (State::On(_), _) if self.ready() => None,
            (State::On(_), _) => {
                self.state = State::Disabling;
                self.cycle = false;
                Some(PathOrder::Disable)
            }
            (State::Off, Some(hop)) => {
                self.state = State::Enabling(hop);
                Some(PathOrder::Enable(hop))
            }
            _ => None,
        }
    }

    pub(super) fn on_enabled(&mut self) {
        if let State::Enabling(hop) = self.state {
            self.state = State::On(hop);
        }
    }

    pub(super) fn on_disabled(&mut self) -> PathResult {
        match self.state {
            State::Disabling => {
                self.state = State::Off;
                PathResult::Fine
            }
            State::Enabling(_) => {
                self.state = State::Off;
                PathResult::Failed
            }
            State::Off | State::On(_) => PathResult::Fine,
        }
    }
}

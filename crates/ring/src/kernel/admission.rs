//! Who is at the other ends of the cables, and who is let in.

use usb4_ring_abi::uapi;
use usb4_wire::NodeId;

use super::errors::Request;
use super::{Client, ROOM};
use crate::admission::{Cable, CableState, Policy, Refusal, RouterId, Rule, Rules};
use crate::{Error, Result};

#[allow(clippy::cast_possible_truncation, reason = "a few bytes")]
const CABLE_BYTES: u32 = size_of::<uapi::Cable>() as u32;
#[allow(clippy::cast_possible_truncation, reason = "a few bytes")]
const RULE_BYTES: u32 = size_of::<uapi::Rule>() as u32;

impl Client {
    pub(crate) fn cables(&self) -> Result<Vec<Cable>> {
        let list = self.list(|room, start: *mut uapi::Cable| {
            let mut list = uapi::Cables {
                count: room,
                stride: CABLE_BYTES,
                cables: start.addr() as u64,
                ..uapi::Cables::new()
            };
            self.ask(uapi::IOC_CABLES, &mut list, Request::Cables)?;
            Ok(list.count)
        })?;
        Ok(list.iter().map(cable).collect())
    }

    /// Why there is no link to a host at the other end of a cable, if one side refuses the other.
    pub(super) fn why_none(&self, node: NodeId) -> Option<Refusal> {
        let cables = self.cables().ok()?;
        cables
            .iter()
            .filter(|cable| cable.node == Some(node))
            .find_map(|cable| match cable.state {
                CableState::Refused(refusal) => Some(refusal),
                _ => None,
            })
    }

    pub(crate) fn rules(&self) -> Result<Rules> {
        let mut policy = Policy::Open;
        let list = self.list(|room, start: *mut uapi::Rule| {
            let mut list = uapi::Rules {
                count: room,
                stride: RULE_BYTES,
                rules: start.addr() as u64,
                ..uapi::Rules::new()
            };
            self.ask(uapi::IOC_RULES, &mut list, Request::Rules)?;
            policy = match list.policy {
                uapi::POLICY_OPEN => Policy::Open,
                _ => Policy::Listed,
            };
            Ok(list.count)
        })?;
        Ok(Rules {
            policy,
            rules: list.iter().map(rule).collect(),
        })
    }

    pub(crate) fn set_rules(&self, rules: &Rules) -> Result<()> {
        let list: Vec<uapi::Rule> = rules.rules.iter().map(kernel_rule).collect();
        let count = u32::try_from(list.len()).ok();
        let count = count
            .filter(|_| list.len() <= uapi::MAX_RULES)
            .ok_or(Error::Invalid("there can be 256 rules"))?;
        let mut argument = uapi::Rules {
            policy: match rules.policy {
                Policy::Open => uapi::POLICY_OPEN,
                Policy::Listed => uapi::POLICY_LISTED,
            },
            count,
            stride: RULE_BYTES,
            rules: list.as_ptr().addr() as u64,
            ..uapi::Rules::new()
        };
        self.ask(uapi::IOC_SET_RULES, &mut argument, Request::SetRules)
    }

    /// A list of the kernel's: `ask` gets room and where it is, and says how many elements there are.
    pub(super) fn list<T: Copy + Default>(
        &self,
        mut ask: impl FnMut(u32, *mut T) -> Result<u32>,
    ) -> Result<Vec<T>> {
        let mut room = ROOM;
        loop {
            let mut list = vec![T::default(); room as usize];
            let count = ask(room, list.as_mut_ptr())?;
            if count <= room {
                list.truncate(count as usize);
                return Ok(list);
            }
            room = count;
        }
    }
}

fn cable(cable: &uapi::Cable) -> Cable {
    let node = NodeId::from_halves(cable.node_low, cable.node_high);
    let state = match cable.state {
        uapi::CABLE_UP => CableState::Up,
        uapi::CABLE_REFUSED => CableState::Refused(match cable.reason {
            uapi::REFUSED_BY_RULES => Refusal::Rules,
            uapi::REFUSED_NOT_ALLOWED => Refusal::NotAllowed,
            uapi::REFUSED_VERSION => Refusal::Version,
            uapi::REFUSED_RESOURCES => Refusal::Resources,
            uapi::REFUSED_SHUTDOWN => Refusal::Shutdown,
            _ => Refusal::Other,
        }),
        _ => CableState::Connecting,
    };
    Cable::new(RouterId(cable.router), (node != NodeId(0)).then_some(node), state)
}

fn rule(rule: &uapi::Rule) -> Rule {
    Rule {
        node: NodeId::from_halves(rule.node_low, rule.node_high),
        router: (rule.router != [0; 16]).then_some(RouterId(rule.router)),
    }
}

fn kernel_rule(rule: &Rule) -> uapi::Rule {
    let (node_low, node_high) = rule.node.halves();
    uapi::Rule {
        node_low,
        node_high,
        router: rule.router.map_or([0; 16], |router| router.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_cables_survive_the_way_to_the_kernel() {
        for router in [None, Some(RouterId([7; 16]))] {
            let one = Rule {
                node: NodeId::from_halves(1, 2),
                router,
            };
            assert_eq!(rule(&kernel_rule(&one)), one);
        }
        let refused = uapi::Cable {
            router: [9; 16],
            node_low: 5,
            state: uapi::CABLE_REFUSED,
            reason: uapi::REFUSED_BY_RULES,
            ..uapi::Cable::default()
        };
        assert_eq!(cable(&refused).state, CableState::Refused(Refusal::Rules));
        assert_eq!(cable(&refused).node, Some(NodeId(5)));
        let later = uapi::Cable {
            reason: 77,
            ..refused
        };
        assert_eq!(cable(&later).state, CableState::Refused(Refusal::Other));
        assert_eq!(cable(&uapi::Cable::default()).node, None);
    }
}

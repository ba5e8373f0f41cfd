//! VLAN sub-ports, as packets see them: which sub-port a tagged frame belongs to, and which tags a
//! sub-port's frames get.

use super::PortId;
use crate::wire::vlan::Tags;

/// Where a sub-port's frames go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubPort {
    /// The port that has the rings.
    pub parent: PortId,
    /// The tags.
    pub tags: Tags,
}

/// No sub-port.
const NONE: PortId = PortId::MAX;

/// The sub-ports of one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trunk {
    /// Those of a single 802.1Q tag, by VLAN.
    plain: Vec<PortId>,
    /// All others, sorted.
    others: Vec<(Tags, PortId)>,
    /// Whether there are any of two tags.
    stacked: bool,
}

impl Trunk {
    /// The sub-ports with these tags; of two with the same, the later counts. `None` without any.
    pub fn new(ports: impl IntoIterator<Item = (Tags, PortId)>) -> Option<Self> {
        let mut trunk = Self { plain: vec![NONE; 4096], others: Vec::new(), stacked: false };
        let mut any = false;
        for (tags, port) in ports {
            any = true;
            if tags.inner.is_none() && !tags.outer.service {
                trunk.plain[usize::from(tags.outer.vlan % 4096)] = port;
            } else {
                trunk.others.retain(|(known, _)| *known != tags);
                trunk.others.push((tags, port));
                trunk.stacked |= tags.inner.is_some();
            }
        }
        trunk.others.sort_unstable();
        any.then_some(trunk)
    }

    /// The sub-port whose frames have these tags.
    #[inline(always)]
    pub fn find(&self, tags: Tags) -> Option<PortId> {
        if tags.inner.is_none() && !tags.outer.service {
            return Some(self.plain[usize::from(tags.outer.vlan % 4096)]).filter(|port| *port != NONE);
        }
        let at = self.others.binary_search_by_key(&tags, |(tags, _)| *tags).ok()?;
        Some(self.others[at].1)
    }

    /// Whether there are sub-ports of two tags.
    #[inline(always)]
    pub fn is_stacked(&self) -> bool {
        self.stacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_find_their_sub_port_and_no_other() {
        let tags = |text: &str| text.parse::<Tags>().unwrap();
        let all = ["100", "4094", "s100", "s100.100", "100.100", "s7.100"];
        let trunk = Trunk::new(all.iter().map(|t| tags(t)).zip(3..)).unwrap();
        for (text, port) in all.iter().zip(3..) {
            assert_eq!(trunk.find(tags(text)), Some(port), "{text}");
        }
        for text in ["1", "s1", "s100.101", "101.100", "s8.100"] {
            assert_eq!(trunk.find(tags(text)), None, "{text}");
        }
        assert!(trunk.is_stacked() && Trunk::new([]).is_none());
        assert!(!Trunk::new([(tags("100"), 1), (tags("s200"), 2)]).unwrap().is_stacked());
    }
}

//! Computes a deterministic order of hooks or of plugins.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use serde::{Deserialize, Serialize};

use crate::error::core_error;

/// An item to order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderItem {
    /// The item's name, which other items' constraints use. Several items may share a name.
    pub key: String,
    /// Name of the distribution that registered the item.
    pub source: String,
    /// Items of higher priority come first.
    #[serde(default)]
    pub priority: i32,
    /// Keys or sources that the item must come before. Names that no item has are ignored, because they may
    /// belong to plugins that are not installed.
    #[serde(default)]
    pub before: Vec<String>,
    /// Keys or sources that the item must come after. Names that no item has are ignored.
    #[serde(default)]
    pub after: Vec<String>,
}

/// Constraints that no order can satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The constraints form a cycle.
    #[error("no order is possible: each of these must come before the next, and the last before the first: {}", .members.join(", "))]
    Cycle {
        /// Keys of the items in the cycle, each before the next.
        members: Vec<String>,
    },
}

core_error! { OrderError {
    Self::Cycle { members } => "order_cycle", serde_json::json!({"members": members});
} }

/// Orders items and returns their indices, first to last.
///
/// Among the items whose predecessors are all placed, the next is the one with the highest priority, then
/// with the alphabetically first source, then with the smallest index.
///
/// # Errors
/// [`OrderError::Cycle`] if the constraints contradict each other.
pub fn order(items: &[OrderItem]) -> Result<Vec<usize>, OrderError> {
    let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        named.entry(&item.key).or_default().push(index);
        if item.source != item.key {
            named.entry(&item.source).or_default().push(index);
        }
    }
    let mut predecessors = vec![BTreeSet::new(); items.len()];
    let mut successors = vec![BTreeSet::new(); items.len()];
    for (index, item) in items.iter().enumerate() {
        let others = |names: &[String]| -> Vec<usize> {
            let found = names.iter().filter_map(|name| named.get(name.as_str()));
            found.flatten().copied().filter(|other| *other != index).collect()
        };
        for other in others(&item.after) {
            predecessors[index].insert(other);
            successors[other].insert(index);
        }
        for other in others(&item.before) {
            predecessors[other].insert(index);
            successors[index].insert(other);
        }
    }
    let rank = |index: usize| {
        (
            Reverse(items[index].priority),
            items[index].source.as_str(),
            index,
        )
    };
    let mut waiting: Vec<usize> = predecessors.iter().map(BTreeSet::len).collect();
    let mut ready: BTreeSet<_> = (0..items.len())
        .filter(|index| waiting[*index] == 0)
        .map(rank)
        .collect();
    let mut placed = Vec::with_capacity(items.len());
    while let Some((_, _, next)) = ready.pop_first() {
        placed.push(next);
        for successor in &successors[next] {
            waiting[*successor] -= 1;
            if waiting[*successor] == 0 {
                ready.insert(rank(*successor));
            }
        }
    }
    let Some(start) = waiting.iter().position(|count| *count > 0) else {
        return Ok(placed);
    };
    // Each remaining item has a remaining predecessor, so walking back must reach a cycle.
    let mut walk = vec![start];
    while let Some(previous) = predecessors[walk[walk.len() - 1]]
        .iter()
        .find(|index| waiting[**index] > 0)
    {
        if let Some(first) = walk.iter().position(|index| index == previous) {
            walk.drain(..first);
            break;
        }
        walk.push(*previous);
    }
    let members = walk.iter().rev().map(|index| items[*index].key.clone()).collect();
    Err(OrderError::Cycle { members })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(key: &str, source: &str, priority: i32, before: &[&str], after: &[&str]) -> OrderItem {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        OrderItem {
            key: key.into(),
            source: source.into(),
            priority,
            before: owned(before),
            after: owned(after),
        }
    }

    #[test]
    fn constraints_then_priority_then_source_then_registration() {
        let items = [
            item("late", "zeta", 0, &[], &[]),
            item("second", "acme", 0, &[], &[]),
            item("third", "acme", 0, &[], &[]),
            item("high", "zeta", 9, &[], &["late"]),
            item("first", "zeta", 5, &[], &[]),
        ];
        assert_eq!(order(&items), Ok(vec![4, 1, 2, 0, 3]));
    }

    #[test]
    fn a_source_in_a_constraint_stands_for_all_of_its_other_items() {
        let items = [
            item("a", "acme", 0, &[], &[]),
            item("b", "acme", 0, &["acme"], &[]),
            item("c", "zeta", -5, &["acme"], &["nobody"]),
        ];
        assert_eq!(order(&items), Ok(vec![2, 1, 0]));
    }

    #[test]
    fn the_error_of_a_cycle_names_only_its_members() {
        let items = [
            item("free", "acme", 0, &[], &[]),
            item("downstream", "acme", 0, &[], &["a"]),
            item("a", "acme", 0, &["b"], &[]),
            item("b", "acme", 0, &["c"], &[]),
            item("c", "acme", 0, &["a"], &[]),
        ];
        let OrderError::Cycle { members } = order(&items).unwrap_err();
        let start = members
            .iter()
            .position(|key| key == "a")
            .expect("a is in the cycle");
        let round: Vec<_> = (0..members.len())
            .map(|i| members[(start + i) % members.len()].as_str())
            .collect();
        assert_eq!(round, ["a", "b", "c"]);
    }

    /// The definition, implemented literally: repeatedly place the best item whose predecessors are placed.
    fn naive(items: &[OrderItem]) -> Option<Vec<usize>> {
        let mut placed: Vec<usize> = Vec::new();
        while placed.len() < items.len() {
            let left: Vec<usize> = (0..items.len()).filter(|index| !placed.contains(index)).collect();
            let free = left
                .iter()
                .filter(|index| !left.iter().any(|other| comes_before(items, *other, **index)));
            let best = free.min_by(|a, b| {
                let (x, y) = (&items[**a], &items[**b]);
                y.priority
                    .cmp(&x.priority)
                    .then(x.source.cmp(&y.source))
                    .then(a.cmp(b))
            })?;
            placed.push(*best);
        }
        Some(placed)
    }

    fn items() -> impl Strategy<Value = Vec<OrderItem>> {
        let name = prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "x", "y", "nobody"]);
        let names = prop::collection::vec(name, 0..2);
        let key = prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
        let source = prop::sample::select(vec!["x", "y", "z"]);
        let one = (key, source, -1..2i32, names.clone(), names)
            .prop_map(|(key, source, priority, before, after)| item(key, source, priority, &before, &after));
        prop::collection::vec(one, 0..8)
    }

    /// Whether a constraint requires item `a` to come before item `b` (both given by index).
    fn comes_before(items: &[OrderItem], a: usize, b: usize) -> bool {
        let is = |index: usize, name: &String| items[index].key == *name || items[index].source == *name;
        a != b && (items[a].before.iter().any(|n| is(b, n)) || items[b].after.iter().any(|n| is(a, n)))
    }

    proptest! {
        #[test]
        fn every_constraint_holds_and_nothing_is_lost(items in items()) {
            if let Ok(placed) = order(&items) {
                let mut indices = placed.clone();
                indices.sort_unstable();
                prop_assert_eq!(indices, (0..items.len()).collect::<Vec<_>>());
                for (place, later) in placed.iter().enumerate() {
                    for earlier in &placed[..place] {
                        prop_assert!(!comes_before(&items, *later, *earlier));
                    }
                }
            }
        }

        /// If no two items share source and priority, the order of registration does not matter.
        #[test]
        fn registered_in_any_order_they_come_out_the_same(
            (items, shuffled) in items().prop_flat_map(|mut items| {
                let mut seen = BTreeSet::new();
                items.retain(|item| seen.insert((item.source.clone(), item.priority)));
                (Just(items.clone()), Just(items).prop_shuffle())
            })
        ) {
            let placed = |items: &[OrderItem]| -> Option<Vec<OrderItem>> {
                let indices = order(items).ok()?;
                Some(indices.into_iter().map(|index| items[index].clone()).collect())
            };
            prop_assert_eq!(placed(&items), placed(&shuffled));
        }

        #[test]
        fn the_order_is_the_naive_one(items in items()) {
            match order(&items) {
                Ok(placed) => prop_assert_eq!(Some(placed), naive(&items)),
                Err(OrderError::Cycle { members }) => {
                    prop_assert_eq!(naive(&items), None);
                    for (index, member) in members.iter().enumerate() {
                        let next = &members[(index + 1) % members.len()];
                        let constrained = items.iter().any(|a| a.key == *member && items.iter().any(|b| {
                            b.key == *next
                                && (a.before.iter().any(|n| *n == b.key || *n == b.source)
                                    || b.after.iter().any(|n| *n == a.key || *n == a.source))
                        }));
                        prop_assert!(constrained, "{} does not have to come before {}", member, next);
                    }
                }
            }
        }
    }
}

//! Operations on many backends, plugins and times, whose cost must not be quadratic.

use std::{fmt::Write as _, path::PathBuf, sync::Arc};

use switchrail::{
    BackendId, Entry, Op, OrderItem, Origin, Packages, PluginGroup, PluginOrigin, PluginRecord, PluginState,
    Preferences, Query, Runtime, Sample, Selection, order,
};

use super::{plugin, query, register, sample, spec};

/// Names in unsorted order.
fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("backend-{:06}", number * 7919 % count.max(1)))
}

/// Stages backends in one transaction and commits it.
pub fn register_all(count: usize) -> (Arc<Runtime>, Vec<BackendId>) {
    let runtime = Runtime::new();
    let transaction = runtime.begin(plugin("acme"));
    let add = |name: String| {
        let spec = spec(Op::GatedDelta, &name);
        transaction.registrar().add(spec, Entry::Foreign, true).unwrap()
    };
    let ids = names(count).map(add).collect();
    transaction.commit().unwrap();
    (runtime, ids)
}

/// Withdraws backends in one transaction.
pub fn withdraw_all((runtime, ids): &(Arc<Runtime>, Vec<BackendId>)) {
    let transaction = runtime.begin(plugin("acme"));
    for id in ids {
        transaction.registrar().withdraw(*id).unwrap();
    }
    assert_eq!(transaction.commit().unwrap().changes.len(), ids.len());
}

/// The plugins of `count` distributions: a general plugin and a platform of each.
pub fn installed(count: usize) -> Vec<PluginRecord> {
    let groups = [PluginGroup::Plugins, PluginGroup::Platforms];
    let record = |(name, group): (String, PluginGroup)| PluginRecord {
        origin: PluginOrigin {
            path: PathBuf::from(format!("/site/{name}-1.dist-info")),
            distribution: name.clone(),
            version: Some("1".to_owned()),
        },
        name,
        group,
        target: "module:register".to_owned(),
        extras: Vec::new(),
        state: PluginState::Discovered,
    };
    names(count)
        .flat_map(|name| groups.map(|group| (name.clone(), group)))
        .map(record)
        .collect()
}

/// Applies a selection with a platform and with half of the plugins allowed.
pub fn select(plugins: &mut [PluginRecord]) {
    let half = plugins.iter().take(plugins.len() / 2);
    let selection = Selection {
        allow: Some(half.map(PluginRecord::qualified_name).collect()),
        platform: Some("cpu".to_owned()),
    };
    selection.apply(plugins).unwrap();
}

/// Orders items, every tenth of which must come before the next.
pub fn put_in_order(count: usize) {
    let names: Vec<String> = names(count).collect();
    let item = |(number, name): (usize, &String)| OrderItem {
        key: name.clone(),
        source: name.clone(),
        before: names
            .get(number + 1)
            .filter(|_| number % 10 == 0)
            .into_iter()
            .cloned()
            .collect(),
        ..OrderItem::default()
    };
    let items: Vec<OrderItem> = names.iter().enumerate().map(item).collect();
    assert_eq!(order(&items).unwrap().len(), count);
}

/// A runtime with `count` backends, and a query with their times at four loads, from 1 to `largest`.
pub fn measured(count: usize, largest: u64) -> (Arc<Runtime>, Query) {
    let runtime = Runtime::new();
    let names: Vec<String> = names(count).collect();
    for name in &names {
        register(&runtime, Origin::User, spec(Op::GatedDelta, name), false);
    }
    let loads = [(1, 1), (1, largest), (largest, 1), (largest, largest)];
    let times = |(row, (rows, length)): (usize, (u64, u64))| -> Sample {
        let time = |(number, name): (usize, &'_ String)| {
            let number = u64::try_from((number * 31 + row * 17) % count).unwrap();
            (name.clone(), (u64::MAX >> (number % 60)).saturating_sub(number))
        };
        let timed: Vec<(String, u64)> = names.iter().enumerate().map(time).collect();
        let timed: Vec<(&str, u64)> = timed.iter().map(|(name, time)| (name.as_str(), *time)).collect();
        sample(rows, length, &timed)
    };
    let query = Query {
        measured: loads.into_iter().enumerate().map(times).collect(),
        ..query(Op::GatedDelta)
    };
    (runtime, query)
}

/// Resolves a query; returns the chosen backend as text.
pub fn resolve((runtime, query): &(Arc<Runtime>, Query)) -> String {
    let found = runtime
        .snapshot()
        .resolve(query, &Preferences::default(), &Packages::default());
    let mut text = String::new();
    write!(text, "{:?}", found.unwrap().chosen).unwrap();
    text
}

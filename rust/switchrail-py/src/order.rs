//! Mirror of the core's `order`.

use pyo3::prelude::*;
use switchrail::OrderItem;

use crate::errors::raise;

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Item {
    key: String,
    source: String,
    priority: i32,
    before: Vec<String>,
    after: Vec<String>,
}

/// Orders items. Returns their indices, first to last.
#[pyfunction]
pub fn order(items: Vec<Item>) -> PyResult<Vec<usize>> {
    let item = |Item {
                    key,
                    source,
                    priority,
                    before,
                    after,
                }| OrderItem {
        key,
        source,
        priority,
        before,
        after,
    };
    let items: Vec<OrderItem> = items.into_iter().map(item).collect();
    switchrail::order(&items).map_err(raise)
}

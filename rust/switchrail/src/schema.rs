//! The version of the serialised form.

/// Version of the JSON form of every top-level document: discovery, layout, decision, route plan, fingerprint.
///
/// It grows when a reader of the old form would misread the new one; a field more does not count.
pub const SCHEMA_VERSION: u32 = 1;

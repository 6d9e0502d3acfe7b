//! Converts the core's errors to the exceptions of `switchrail.errors`: codes become classes, fields become
//! attributes.

use pyo3::prelude::*;
use switchrail::CoreError;

use crate::{
    exception::{argument_error, exception, let_pass_interrupts},
    json,
    text::described,
};

/// The exception class for each code. Unknown codes give the base class; a test checks that every code is
/// known.
fn class_of(code: &str) -> &'static str {
    match code {
        "unknown_op" => "UnknownOpError",
        "unknown_phase" | "plan_no_phase" => "UnknownPhaseError",
        "unknown_dtype" => "UnknownDtypeError",
        "unknown_device" => "UnknownDeviceError",
        "unknown_preference_key" | "misplaced_auto" | "plan_classes" => "PreferenceError",
        "unknown_backend" | "unknown_preferred_backend" | "unknown_registered_backend" => {
            "UnknownBackendError"
        }
        "unfit_backend" => "BackendUnfitError",
        "no_backend" | "layer_no_backend" | "layer_uncovered" => "NoBackendError",
        "bad_requirement_name"
        | "bad_requirement_specifier"
        | "bad_backend_spec"
        | "unknown_backend_claim"
        | "backend_not_own" => "RegistrationError",
        "bad_backend_config" => "ConfigError",
        "backend_taken" => "NameTakenError",
        "commit_conflict" | "commit_gone" => "ConflictError",
        "transaction_closed" | "commit_closed" => "TransactionClosedError",
        "unknown_layer" | "route_unknown_layer" => "UnknownLayerError",
        "plan_backend_gone" => "StalePlanError",
        "route_other_ops" | "route_phase_not_planned" => "NoRouteError",
        "unknown_model_type" | "layout_no_model_type" => "UnknownModelError",
        "unknown_layer_kind"
        | "layout_unknown_kind"
        | "layout_read"
        | "layout_json"
        | "layout_missing_key"
        | "layout_bad_value"
        | "layout_length"
        | "layout_id_out_of_range"
        | "layout_contradiction"
        | "layout_unassigned" => "LayoutError",
        "unknown_schema"
        | "layout_document"
        | "plan_document_layer"
        | "plan_document_backend"
        | "plan_document_missing"
        | "plan_document_twice"
        | "plan_document_classes"
        | "replay_order"
        | "replay_unknown" => "SchemaError",
        "unknown_plugin" => "UnknownPluginError",
        "unknown_platform" => "PlatformError",
        "lock_read" | "lock_document" | "lock_file" | "lock_host" => "LockError",
        "order_cycle" => "OrderError",
        _ => "SwitchrailError",
    }
}

/// The exception for an error of the core, for use in `map_err`.
pub fn raise(error: impl CoreError) -> PyErr {
    Python::attach(|py| {
        let fields = json::to_py(py, &error.fields());
        match fields {
            Ok(fields) => exception(py, class_of(error.code()), error.to_string(), fields.cast().ok()),
            Err(error) => error,
        }
    })
}

/// Extracts arguments from a mapping. If one has a wrong type, the `ArgumentError` names it.
pub fn arguments<'py, T>(mapping: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    mapping.extract().map_err(|error: PyErr| {
        let build = || -> PyResult<PyErr> {
            let py = mapping.py();
            let error = let_pass_interrupts(py, error)?;
            let message = error.value(py).to_string(); // such as "failed to extract field Spec.priority"
            let argument = message.rsplit('.').next().unwrap_or_default();
            let found = match mapping.get_item(argument) {
                Ok(found) => found,
                Err(error) => {
                    let_pass_interrupts(py, error)?;
                    mapping.clone()
                }
            };
            let mut deepest = error.cause(py);
            while let Some(cause) = deepest.as_ref().and_then(|cause| cause.cause(py)) {
                deepest = Some(cause);
            }
            let problem = deepest.map_or(message.clone(), |cause| cause.value(py).to_string());
            let shown = format!("{argument} is {}: {problem}", described(&found)?);
            Ok(argument_error(Some(argument), &found, shown))
        };
        build().unwrap_or_else(|error| error)
    })
}

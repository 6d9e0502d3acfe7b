//! The common form of this crate's errors.

use serde_json::Value;

/// An error of this crate, for hosts that map errors to their own types.
///
/// `Display` gives the whole message for a reader. The code and the fields give the same information to
/// programs.
pub trait CoreError: std::error::Error {
    /// A stable `snake_case` name of the error, unique in the crate.
    fn code(&self) -> &'static str;

    /// The error's data, such as the invalid value and the valid ones, as a JSON object.
    ///
    /// For an unknown name it has at least `found`, `valid` and `nearest` (see
    /// [`UnknownName`](crate::UnknownName)).
    fn fields(&self) -> Value;
}

/// Implements [`CoreError`] for an enum, from the code and the fields of each variant.
macro_rules! core_error {
    ($error:ty { $($variant:pat => $code:expr, $fields:expr;)+ }) => {
        impl $crate::CoreError for $error {
            #[allow(unused_variables)]
            fn code(&self) -> &'static str {
                match self {
                    $($variant => $code,)+
                }
            }

            #[allow(clippy::match_same_arms)]
            fn fields(&self) -> serde_json::Value {
                match self {
                    $($variant => $fields,)+
                }
            }
        }
    };
}
pub(crate) use core_error;

/// Merges the fields of an error with more fields; `more` takes precedence.
pub(crate) fn extended(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

//! Enums whose values have names, and the errors for unknown names.

use crate::{UnknownName, error::core_error};

/// An unknown name of an op, phase, dtype, device or layer kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No [`Op`](crate::Op) has that name.
    #[error(transparent)]
    Op(UnknownName),
    /// No [`Phase`](crate::Phase) has that name.
    #[error(transparent)]
    Phase(UnknownName),
    /// No [`Dtype`](crate::Dtype) has that name.
    #[error(transparent)]
    Dtype(UnknownName),
    /// No [`DeviceKind`](crate::DeviceKind) has that name, and it does not have the form `oot:NAME`.
    #[error(transparent)]
    Device(UnknownName),
    /// No [`LayerKind`](crate::LayerKind) has that name.
    #[error(transparent)]
    LayerKind(UnknownName),
}

core_error! { NameError {
    Self::Op(name) => "unknown_op", name.fields();
    Self::Phase(name) => "unknown_phase", name.fields();
    Self::Dtype(name) => "unknown_dtype", name.fields();
    Self::Device(name) => "unknown_device", name.fields();
    Self::LayerKind(name) => "unknown_layer_kind", name.fields();
} }

/// Defines an enum whose values have names: the list of values, their names, and a parser with suggestions.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal, $error:ident, { $($(#[$vdoc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "&'static str")]
        pub enum $type {
            $($(#[$vdoc])* $variant,)+
        }

        impl $type {
            /// All values, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name that [`FromStr`](std::str::FromStr) parses and [`Display`](std::fmt::Display) shows.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::NameError;

            fn from_str(found: &str) -> Result<Self, crate::NameError> {
                Self::ALL
                    .into_iter()
                    .find(|value| value.name() == found)
                    .ok_or_else(|| crate::NameError::$error(crate::UnknownName::new($what, found, [$($name),+])))
            }
        }

        impl TryFrom<String> for $type {
            type Error = crate::NameError;

            fn try_from(found: String) -> Result<Self, crate::NameError> {
                found.parse()
            }
        }

        impl From<$type> for &'static str {
            fn from(value: $type) -> Self {
                value.name()
            }
        }
    };
}
pub(crate) use names;

/// Lets serde read and write a type as a string.
macro_rules! string_form {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;

            fn try_from(found: String) -> Result<Self, Self::Error> {
                found.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}
pub(crate) use string_form;

//! The checks of the validation table. Each reports upstream's error; none changes anything.

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use super::{Code, Site};
use crate::check::{At, Errors, TextRule};
use crate::validation;

/// The values that a check sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    NotEmpty,
    Set,
    Always,
}

/// The value that a required field has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    NotEmpty,
    NotBlank,
    /// A value, also an empty one.
    Set,
    Object,
}

/// One rule of a field.
pub(super) enum Check {
    /// Requires a value; else the rest of the line does not apply.
    Required {
        needs: Needs,
        detail: String,
    },
    /// Requires a string to have a form.
    Format {
        rule: TextRule,
        when: When,
    },
    /// Requires one of some words. `is_plain` is whether upstream has no type of its own for the string.
    OneOf {
        words: Vec<&'static str>,
        when: When,
        is_plain: bool,
    },
    /// Requires a number within bounds, if it is set or absent counts as zero.
    Number {
        low: i64,
        high: i64,
        absent_is_zero: bool,
        detail: String,
    },
    /// Requires a quantity of at least this sign.
    Quantity {
        sign: i8,
        detail: String,
    },
    /// Requires a number that does not exceed the number in another field of the struct.
    NotAbove {
        field: &'static str,
        detail: String,
    },
    MaxBytes(usize),
    MaxItems(usize),
    /// Requires at most so many bytes of a string or items of a list, in words of its own.
    Length {
        max: usize,
        detail: String,
    },
    /// Requires that `*` is the only item of a list.
    StarAlone(String),
    /// Requires distinct items, by a field if it is named.
    Unique(Option<&'static str>),
    /// Refuses the value.
    Error {
        kind: Refusal,
        detail: String,
    },
    Unsupported(Vec<&'static str>),
    /// Requires that the value does not change; `is_exact` is whether empty and absent differ.
    Fixed {
        is_exact: bool,
        detail: String,
    },
    /// Forbids a change of the value.
    Frozen(String),
    /// Ends the line if it has found errors.
    StopAtErrors,
    /// Applies the rest of the line to every item of a list.
    Each {
        /// Whether errors name the list and not the item.
        names_list: bool,
    },
    /// Applies the rest of the line to every item of a list, and then requires distinct items, by a field if it is named.
    Set(Option<&'static str>),
    /// Requires a string that no earlier item of the list has here.
    Once {
        skips_empty: bool,
    },
    /// Applies the rules of the value's type, also if it is absent and upstream's struct holds it by value.
    Struct {
        place: usize,
        by_value: bool,
    },
    /// Applies a rule in code.
    Code(Code),
}

/// The kind of error of a refused value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    Required,
    Invalid,
    /// Shows the string as JSON.
    InvalidJson,
    /// Shows the string, also if it is absent.
    InvalidText,
    /// Shows an empty string.
    InvalidEmpty,
    /// Shows null.
    InvalidNull,
    Forbidden,
}

impl Check {
    /// Reports whether the check may refuse an absent value.
    pub fn sees_absent(&self) -> bool {
        match self {
            Check::Format { when, .. } | Check::OneOf { when, .. } => *when == When::Always,
            Check::Number { absent_is_zero, .. } => *absent_is_zero,
            Check::Struct { by_value, .. } => *by_value,
            Check::Code(Code::Present(_)) => false,
            Check::Required { .. }
            | Check::Error { .. }
            | Check::Unsupported(_)
            | Check::Fixed { .. }
            | Check::Frozen(_)
            | Check::NotAbove { .. }
            | Check::Once { .. }
            | Check::Code(_) => true,
            _ => false,
        }
    }

    /// Applies the check to a value; reports whether the rest of the line applies.
    pub fn apply(&self, site: &Site<'_, '_>, errors: &mut Errors) -> bool {
        let at = site.at;
        match self {
            Check::Required { needs, detail } if !needs.are_met(at) => {
                errors.push(at.required(detail));
                return false;
            }
            Check::Format { rule, when } if when.sees(at) => at.follows_also_empty(errors, *rule),
            Check::OneOf { words, when, is_plain } if when.sees(at) && !words.contains(&at.text()) => {
                let error = at.not_supported(words);
                errors.push(if *is_plain { error.as_text() } else { error });
            }
            Check::Number { low, high, absent_is_zero, detail } => {
                let number = at.number().or(absent_is_zero.then_some(0));
                if let Some(number) = number.filter(|number| !(low..=high).contains(&number)) {
                    errors.push(FieldError::invalid(&at.path, number, detail.as_str()));
                }
            }
            Check::Quantity { sign, detail } => {
                if let Some(quantity) = at.quantity().filter(|quantity| quantity.sign() < *sign) {
                    errors.push(FieldError::invalid(&at.path, quantity.to_string(), detail.as_str()));
                }
            }
            Check::NotAbove { field, detail } => {
                let number = at.number().unwrap_or_default();
                if number > site.of.get(field).number().unwrap_or_default() {
                    errors.push(FieldError::invalid(&at.path, number, detail.as_str()));
                }
            }
            Check::Length { max, detail } if at.len().max(at.text().len()) > *max => {
                errors.push(at.invalid(detail.as_str()));
            }
            Check::StarAlone(detail) if at.len() > 1 && at.texts().any(|item| item == "*") => {
                errors.push(at.invalid(detail.as_str()));
            }
            Check::MaxBytes(max) => at.at_most_bytes(errors, *max),
            Check::MaxItems(max) => at.at_most(errors, *max),
            Check::Unique(None) => at.unique(errors),
            Check::Unique(Some(key)) => at.unique_by(errors, key),
            Check::Error { kind, detail } => errors.push(kind.error(at, detail)),
            Check::Unsupported(words) => errors.push(at.not_supported(words)),
            Check::Fixed { is_exact, detail } => {
                let old = At::object(site.old.unwrap_or(at.value));
                let are_empty = at.is_empty() && old.is_empty() && (!is_exact || at.is_set() == old.is_set());
                if at.value != old.value && !are_empty {
                    errors.push(at.invalid(detail.as_str()));
                }
            }
            Check::Frozen(detail)
                if site.old.is_some_and(|old| old != at.value && !(is_zero(old) && is_zero(at.value))) =>
            {
                errors.push(at.forbidden(detail.as_str()));
            }
            _ => {}
        }
        true
    }
}

impl Needs {
    fn are_met(self, at: &At<'_>) -> bool {
        match self {
            Needs::NotEmpty => !at.is_empty(),
            Needs::NotBlank => !at.text().trim().is_empty(),
            Needs::Set => at.is_set(),
            Needs::Object => at.is_object(),
        }
    }
}

impl Refusal {
    fn error(self, at: &At<'_>, detail: &str) -> FieldError {
        match self {
            Refusal::Required => at.required(detail),
            Refusal::Invalid => at.invalid(detail),
            Refusal::InvalidJson => FieldError::invalid(&at.path, at.text(), detail).as_json(),
            Refusal::InvalidText => FieldError::invalid(&at.path, at.text(), detail),
            Refusal::InvalidNull => FieldError::invalid(&at.path, Value::Null, detail),
            Refusal::InvalidEmpty => FieldError::invalid(&at.path, "", detail),
            Refusal::Forbidden => at.forbidden(detail),
        }
    }
}

fn is_zero(value: &Value) -> bool {
    value.as_i64().map_or(value.is_null(), |number| number == 0)
}

impl When {
    fn sees(self, at: &At<'_>) -> bool {
        match self {
            When::NotEmpty => !at.text().is_empty(),
            When::Set => at.is_set(),
            When::Always => true,
        }
    }
}

/// Returns the rule of a form by its name in the table.
pub(super) fn format(name: &str) -> Option<TextRule> {
    Some(match name {
        "label" => names::dns1123_label,
        "subdomain" => names::dns1123_subdomain,
        "dns1035" => names::dns1035_label,
        "qualified" => names::qualified_name,
        "label-value" => names::label_value,
        "segment" => names::path_segment_name,
        "port-name" => names::port_name,
        "env-name" => names::relaxed_env_var_name,
        "config-key" => names::config_map_key,
        "c-identifier" => names::c_identifier,
        "ip" => names::address::ip,
        "ip-legacy" => names::address::ip_legacy,
        "cidr" => names::address::cidr,
        "cidr-legacy" => names::address::cidr_legacy,
        _ => return None,
    })
}

/// Returns a rule of a value that many kinds share, by its name in the table.
pub(super) fn shared(name: &str) -> Option<Code> {
    let also_absent: Option<fn(&At<'_>, &mut Errors)> = match name {
        "port-or-name" => Some(|at, errors| errors.extend(validation::port_number_or_name(at.value, &at.path))),
        "endpoint-ip" => Some(validation::endpoint_ip),
        "signer" => Some(validation::signer_name),
        _ => None,
    };
    if let Some(rule) = also_absent {
        return Some(Code::At(rule));
    }
    Some(Code::Present(match name {
        "labels" => |at, errors| errors.extend(validation::labels(at.value, &at.path)),
        "selector" => |at, errors| errors.extend(validation::label_selector(at.value, &at.path)),
        "conditions" => validation::conditions,
        "int-or-percent" => |at, errors| errors.extend(validation::int_or_percent(at.value, &at.path)),
        "uuid" => validation::uuid,
        "no-backsteps" => crate::check::no_backsteps,
        "descending" => crate::check::local_descending,
        "at-most-all" => validation::at_most_all,
        _ => return None,
    }))
}

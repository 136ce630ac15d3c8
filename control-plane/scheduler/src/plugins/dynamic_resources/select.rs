//! Device selectors: CEL expressions over driver, attributes and capacity, compiled once and cached.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use corten_api::k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceSelector};
use corten_cel::value::{Key, Map};
use corten_cel::{Env, Program, Type, Value};

use crate::rows::devices::Offered;

/// The cost limit of one evaluation.
const COST_LIMIT: u64 = 1_000_000;
/// The most cached expressions.
const MOST_PROGRAMS: usize = 1024;

type Compiled = Result<Arc<Expression>, String>;

/// A compiled expression, and the domains that it uses: they are present also when a device has none of their
/// attributes, so that `has()` works.
struct Expression {
    program: Program,
    domains: Vec<String>,
}

/// An expression with its result for each device, by number.
struct Known {
    compiled: Compiled,
    results: Vec<Option<bool>>,
}

#[derive(Default)]
struct Expressions {
    known: HashMap<String, Known>,
    /// The epoch of the device numbers.
    epoch: u64,
}

#[derive(Default)]
pub struct Selectors(Mutex<Expressions>);

impl Selectors {
    /// Reports whether a device matches all of these selectors. A cached result is valid for one epoch.
    pub fn match_all(&self, selectors: &[&DeviceSelector], offered: &Offered<'_>, epoch: u64) -> Result<bool, String> {
        let mut expressions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        expressions.begin(epoch);
        for selector in selectors {
            let Some(cel) = &selector.cel else { return Ok(false) };
            if !expressions.matches(&cel.expression, offered)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Expressions {
    fn begin(&mut self, epoch: u64) {
        if self.known.len() > MOST_PROGRAMS {
            self.known.clear();
        }
        if self.epoch != epoch {
            self.epoch = epoch;
            self.known.values_mut().for_each(|known| known.results.clear());
        }
    }

    fn matches(&mut self, text: &str, offered: &Offered<'_>) -> Result<bool, String> {
        if !self.known.contains_key(text) {
            self.known.insert(text.to_owned(), Known { compiled: compile(text), results: Vec::new() });
        }
        let Some(known) = self.known.get_mut(text) else { return Ok(false) };
        if let Some(Some(matches)) = known.results.get(offered.number) {
            return Ok(*matches);
        }
        let expression = known.compiled.clone()?;
        let device = device(offered, &expression.domains);
        let matches = match expression.program.eval_within(&[("device", device)], COST_LIMIT).value {
            Ok(value) => matches!(value, Value::Bool(true)),
            Err(error) => return Err(format!("CEL runtime error: {error}")),
        };
        if known.results.len() <= offered.number {
            known.results.resize(offered.number + 1, None);
        }
        known.results[offered.number] = Some(matches);
        Ok(matches)
    }
}

fn compile(text: &str) -> Compiled {
    let env = corten_cel::device::environment();
    let program = corten_cel::device::compile(&env, text).map_err(|error| format!("CEL compile error: {error}"))?;
    Ok(Arc::new(Expression { program, domains: quoted(text) }))
}

/// Returns the quoted strings: they include the domains.
fn quoted(text: &str) -> Vec<String> {
    let parts = |mark: char| text.split(mark).skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut found = parts('"');
    found.extend(parts('\''));
    found
}

fn map<'a>(entries: impl Iterator<Item = (String, Value<'a>)>) -> Value<'a> {
    let entry = |(name, value): (String, Value<'a>)| {
        let name: Arc<str> = name.into();
        (Key::String(name.clone()), (Value::string(name), value))
    };
    Value::Map(Map::Owned(Rc::new(entries.map(entry).collect())))
}

fn device<'a>(offered: &Offered<'_>, domains: &[String]) -> Value<'a> {
    let by_domain = |values: Vec<(String, Value<'a>)>| {
        let mut of: BTreeMap<String, Vec<(String, Value<'a>)>> =
            domains.iter().map(|domain| (domain.clone(), Vec::new())).collect();
        for (name, value) in values {
            let (domain, short) = name.split_once('/').unwrap_or((offered.driver, &name));
            of.entry(domain.to_owned()).or_default().push((short.to_owned(), value));
        }
        map(of.into_iter().map(|(domain, values)| (domain, map(values.into_iter()))))
    };
    let attributes = offered.device.attributes.iter().flatten();
    let attributes = attributes.filter_map(|(name, attribute)| Some((name.clone(), attribute_value(attribute)?)));
    let capacity = offered.device.capacity.iter().flatten();
    let capacity = capacity.filter_map(|(name, value)| Some((name.clone(), library("quantity", &value.value.0)?)));
    let fields = [
        ("driver".to_owned(), Value::string(offered.driver)),
        ("attributes".to_owned(), by_domain(attributes.collect())),
        ("capacity".to_owned(), by_domain(capacity.collect())),
        ("allowMultipleAllocations".to_owned(), Value::Bool(offered.is_shared())),
    ];
    map(fields.into_iter())
}

fn attribute_value<'a>(attribute: &DeviceAttribute) -> Option<Value<'a>> {
    if let Some(value) = attribute.bool {
        return Some(Value::Bool(value));
    }
    if let Some(value) = attribute.int {
        return Some(Value::Int(value));
    }
    if let Some(value) = &attribute.string {
        return Some(Value::string(value.as_str()));
    }
    attribute.version.as_ref().and_then(|version| library("semver", version))
}

thread_local! {
    static LIBRARY: RefCell<HashMap<&'static str, Option<Rc<Program>>>> = RefCell::default();
}

/// Returns a value of the CEL library, made by its own function.
fn library<'a>(function: &'static str, text: &str) -> Option<Value<'a>> {
    let program = LIBRARY.with_borrow_mut(|programs| {
        let make =
            || Env::new().variable("text", Type::String).compile(&format!("{function}(text)"), &[]).ok().map(Rc::new);
        programs.entry(function).or_insert_with(make).clone()
    })?;
    program.eval(&[("text", Value::string(text))]).value.ok()
}

//! The counts in `conformance/README.md`: written from the register, between two markers, and checked by `tidy`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::register::{Register, State};
use super::rules::Rules;

const FILE: &str = "conformance/README.md";
const BEGIN: &str = "<!-- counts: written by `cargo xtask conformance` -->\n";
const END: &str = "<!-- end of counts -->\n";

/// Writes the counts of the register into the page.
pub fn write(root: &Path, register: &Register, rules: &Rules) -> Result<()> {
    let page = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    std::fs::write(root.join(FILE), replaced(&page, &table(register, rules))?)?;
    Ok(())
}

/// Returns the problems of register, rules and page for `tidy`.
pub fn problems(root: &Path) -> Result<Vec<String>> {
    let rules = Rules::read(root)?;
    let register = Register::read(root)?;
    let mut problems = register.problems(&rules);
    let page = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    if replaced(&page, &table(&register, &rules))? != page {
        problems.push(format!("the counts of {FILE} are not those of the register"));
    }
    Ok(problems)
}

fn table(register: &Register, rules: &Rules) -> String {
    let (all, passed) = register.conformance();
    let mut text = format!("Of {all} [Conformance] specs **{passed}** are registered as passed.\n\n");
    text += "| state | specs |\n|---|---|\n";
    for state in State::NAMES {
        text += &format!("| {state} | {} |\n", register.count(state));
    }
    text += &format!("| all | {} |\n\n", register.len());
    text += "| rule of not-applicable | specs |\n|---|---|\n";
    for rule in &rules.0 {
        text += &format!("| {} | {} |\n", rule.id, register.count_rule(&rule.id));
    }
    text
}

fn replaced(page: &str, table: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.with_context(|| format!("{FILE} has no marks around its counts"))?;
    ensure!(!tail.contains(BEGIN), "{FILE} has two places for counts");
    Ok(format!("{head}{BEGIN}\n{table}\n{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_between_the_markers() {
        let register = Register::parse("passed\ta [Conformance]\nuntried\tb\n").unwrap();
        let table = table(&register, &Rules(Vec::new()));
        assert!(table.contains("Of 1 [Conformance] specs **1**") && table.contains("| untried | 1 |"), "{table}");
        let page = replaced(&format!("before\n{BEGIN}old\n{END}after\n"), &table).unwrap();
        assert!(page.starts_with("before\n") && page.ends_with("after\n") && !page.contains("old"), "{page}");
        assert_eq!(replaced(&page, &table).unwrap(), page);
        assert!(replaced("no marks", &table).is_err());
    }
}

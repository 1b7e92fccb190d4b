//! The syntax of gflags, which upstream's runners parse their command line with.
//!
//! `--flag value`, `--flag=value`, the same with one dash, `--flag` and `--noflag` for switches; dashes inside a name
//! count as underscores; `--` ends the flags. Of a flag that is there twice the last one counts, but for lists.

use etgenai::Error;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One value.
    Value,
    /// One value each time.
    List,
    /// Nothing, or `=true` or `=false`.
    Switch,
}

/// A flag as it is declared.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name, without dashes.
    pub name: &'static str,
    pub kind: Kind,
    /// What it is if it is not given, as shown to people.
    pub default: &'static str,
    /// One or two lines for people.
    pub help: &'static str,
}

/// What a command line gave.
#[derive(Debug, Default)]
pub struct Given {
    values: Vec<(&'static str, String)>,
    /// Arguments that belong to no flag. gflags leaves them to the program, and upstream's do not look at them.
    pub rest: Vec<String>,
}

impl Given {
    /// Sort `arguments` by the flags they belong to.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a flag that is not declared, has no value, or has one that is none.
    pub fn parse(arguments: &[String], declared: &[Flag]) -> Result<Self, Error> {
        let mut given = Given::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                given.rest.extend(arguments.by_ref().cloned());
                break;
            }
            let Some(text) =
                argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')).filter(|t| !t.is_empty())
            else {
                given.rest.push(argument.clone());
                continue;
            };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            let (flag, negated) = find(name, declared)?;
            let value = match (flag.kind, value) {
                (Kind::Switch, None) => (!negated).to_string(),
                (Kind::Switch, Some(value)) if !negated => switch(flag.name, &value)?.to_string(),
                (Kind::Switch, Some(value)) => {
                    return Err(Error::invalid(format!("--no{} takes no value, it has {value:?}", flag.name)));
                }
                (_, Some(value)) => value,
                (_, None) => match arguments.next() {
                    Some(value) => value.clone(),
                    None => return Err(Error::invalid(format!("flag --{} is missing its value", flag.name))),
                },
            };
            given.values.push((flag.name, value));
        }
        Ok(given)
    }

    /// The value that counts.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.all(name).pop()
    }

    /// Every value of a list, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.values.iter().filter(|(flag, _)| *flag == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// A whole number, decimal or `0x…`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming flag and value.
    pub fn integer(&self, name: &str, default: i32) -> Result<i32, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let (sign, digits) = match text.trim().strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.trim()),
        };
        let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
        let (digits, radix) = hexadecimal.map_or((digits, 10), |digits| (digits, 16));
        let number = i64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['+', '-']));
        number.and_then(|number| i32::try_from(sign * number).ok()).ok_or_else(|| illegal(name, text, "int32"))
    }

    /// A real number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming flag and value.
    pub fn real(&self, name: &str, default: f64) -> Result<f64, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.trim().parse().map_err(|_| illegal(name, text, "double"))
    }
}

/// The flag of this name, and whether the name is that of a switch with `no` in front.
fn find<'d>(name: &str, declared: &'d [Flag]) -> Result<(&'d Flag, bool), Error> {
    let name = name.replace('-', "_");
    let named = |name: &str| declared.iter().find(|flag| flag.name == name);
    let negated = || name.strip_prefix("no").and_then(named).filter(|flag| flag.kind == Kind::Switch);
    named(&name).map(|flag| (flag, false)).or_else(|| negated().map(|flag| (flag, true))).ok_or_else(|| {
        Error::invalid(format!("unknown command line flag {name:?}; etgenai run-pte --help lists the flags there are"))
    })
}

fn switch(name: &str, value: &str) -> Result<bool, Error> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" => Ok(true),
        "0" | "f" | "false" | "n" | "no" => Ok(false),
        _ => Err(illegal(name, value, "bool")),
    }
}

fn illegal(name: &str, value: &str, kind: &str) -> Error {
    Error::invalid(format!("illegal value {value:?} for {kind} flag --{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: [Flag; 5] = [
        Flag { name: "prompt", kind: Kind::List, default: "", help: "" },
        Flag { name: "seq_len", kind: Kind::Value, default: "128", help: "" },
        Flag { name: "temperature", kind: Kind::Value, default: "0", help: "" },
        Flag { name: "shared_buffer", kind: Kind::Switch, default: "false", help: "" },
        Flag { name: "note", kind: Kind::Value, default: "", help: "" },
    ];

    fn parse(arguments: &[&str]) -> Result<Given, Error> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        Given::parse(&arguments, &DECLARED)
    }

    fn complaint(arguments: &[&str]) -> String {
        parse(arguments).expect_err("wrong").to_string()
    }

    #[test]
    fn values_come_in_four_forms() {
        for form in [&["--seq_len", "7"][..], &["--seq_len=7"], &["-seq_len", "7"], &["-seq-len=7"], &["--seq_len=0x7"]]
        {
            assert_eq!(parse(form).unwrap().integer("seq_len", 1).unwrap(), 7, "{form:?}");
        }
        assert_eq!(parse(&[]).unwrap().integer("seq_len", 128).unwrap(), 128);
        assert_eq!(parse(&["--seq_len", "-1"]).unwrap().integer("seq_len", 1).unwrap(), -1, "not a flag of its own");
        assert_eq!(parse(&["--seq_len=1", "--seq_len=2"]).unwrap().integer("seq_len", 0).unwrap(), 2, "the last one");
        assert_eq!(parse(&["--temperature", "0.5"]).unwrap().real("temperature", 0.0).unwrap(), 0.5);
        assert_eq!(parse(&["--note=a=b"]).unwrap().text("note"), Some("a=b"));
        assert_eq!(parse(&["--note="]).unwrap().text("note"), Some(""));
    }

    #[test]
    fn switches_take_no_value_of_their_own() {
        for (form, on) in [
            (&["--shared_buffer"][..], true),
            (&["-shared_buffer"], true),
            (&["--noshared_buffer"], false),
            (&["--shared_buffer=true"], true),
            (&["--shared_buffer=F"], false),
            (&["--shared_buffer=yes"], true),
            (&["--shared_buffer", "--noshared_buffer"], false),
            (&["--shared_buffer", "false"], true),
            (&[], false),
        ] {
            assert_eq!(parse(form).unwrap().is_on("shared_buffer"), on, "{form:?}");
        }
        assert_eq!(parse(&["--shared_buffer", "false"]).unwrap().rest, ["false"]);
    }

    #[test]
    fn lists_keep_every_value_in_either_form() {
        let given = parse(&["--prompt", "one", "--prompt=two", "-prompt", "--three"]).unwrap();
        assert_eq!(given.all("prompt"), ["one", "two", "--three"]);
    }

    #[test]
    fn what_belongs_to_no_flag_is_set_aside() {
        let given = parse(&["a", "-", "--", "--seq_len", "7"]).unwrap();
        assert_eq!(given.rest, ["a", "-", "--seq_len", "7"]);
        assert_eq!(given.text("seq_len"), None);
    }

    #[test]
    fn mistakes_name_flag_and_value() {
        assert!(complaint(&["--prompts", "x"]).contains("unknown command line flag \"prompts\""));
        assert!(complaint(&["--noseq_len"]).contains("unknown command line flag \"noseq_len\""));
        assert!(complaint(&["--seq_len"]).contains("--seq_len is missing its value"));
        assert!(
            complaint(&["--shared_buffer=maybe"]).contains("illegal value \"maybe\" for bool flag --shared_buffer")
        );
        assert!(complaint(&["--noshared_buffer=1"]).contains("takes no value"));
        for value in ["x", "1.5", "9999999999", "", "--1", "+-1", "0x"] {
            let given = parse(&["--seq_len", value]).unwrap();
            let error = given.integer("seq_len", 0).expect_err("no number").to_string();
            assert_eq!(error, format!("illegal value {value:?} for int32 flag --seq_len"));
        }
        let given = parse(&["--temperature", "warm"]).unwrap();
        assert!(given.real("temperature", 0.0).unwrap_err().to_string().contains("\"warm\" for double flag"));
    }
}

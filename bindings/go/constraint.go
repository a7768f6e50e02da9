package bnengine

// Constraint says what an output must match. The zero value matches everything. What does not compile is refused when
// the request is submitted, and by Engine.CheckConstraint.
type Constraint struct {
	kind   int32
	text   string
	schema any
}

// JSONSchema is JSON that is valid under a schema: a json.RawMessage, or a value that encoding/json makes a schema of.
// Properties come in the order in which they stand there.
func JSONSchema(schema any) Constraint {
	return Constraint{kind: BN_CONSTRAINT_JSON_SCHEMA, schema: schema}
}

// JSONObject is any JSON object.
func JSONObject() Constraint { return Constraint{kind: BN_CONSTRAINT_JSON_OBJECT} }

// Regex is a regular expression in Rust's syntax, without anchors, which the whole output matches.
func Regex(expression string) Constraint {
	return Constraint{kind: BN_CONSTRAINT_REGEX, text: expression}
}

// Lark is a grammar in llguidance's dialect of Lark, whose rule start the output matches.
func Lark(grammar string) Constraint { return Constraint{kind: BN_CONSTRAINT_LARK, text: grammar} }

// GBNF is a grammar as llama.cpp has them, whose rule root the output matches.
func GBNF(grammar string) Constraint { return Constraint{kind: BN_CONSTRAINT_GBNF, text: grammar} }

// in returns the constraint's kind, and its text in memory.
func (c *Constraint) in(memory *arena) (int32, bn_string, error) {
	if c.kind == BN_CONSTRAINT_JSON_SCHEMA {
		text, err := memory.json("JSONSchema", c.schema)
		return c.kind, text, err
	}
	return c.kind, memory.text(c.text), nil
}

// CheckConstraint compiles a constraint, and keeps it compiled for requests that follow.
func (e *Engine) CheckConstraint(constraint Constraint) error {
	var memory arena
	defer memory.free()
	kind, text, err := constraint.in(&memory)
	if err != nil {
		return err
	}
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_engine_check_constraint(ptr, kind, text, failure)
	})
}

// JSON says how JSON is written where a constraint or a call of a tool asks for it, as BN_JSON_* do.
type JSON uint32

// The flags of JSON.
const (
	JSONCompact      JSON = BN_JSON_COMPACT       // no white space between tokens
	JSONFlexible     JSON = BN_JSON_FLEXIBLE      // up to 32 characters of it
	JSONKnownFormats JSON = BN_JSON_KNOWN_FORMATS // unknown formats of a schema are refused
	JSONClosed       JSON = BN_JSON_CLOSED        // objects have only the keys that the schema declares, unless it says otherwise
)

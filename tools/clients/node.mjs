// Clients from npm: `node.mjs http://127.0.0.1:PORT`. A line of JSON for each call.
import Anthropic from '@anthropic-ai/sdk';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from 'ai';
import assert from 'node:assert';
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';

const root = process.argv[2];
const asked = [{ role: 'user', content: '17+25=' }];
const schema = { type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'] };
const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;

async function trial(client, call, run) {
    let wrong = null;
    try {
        await run();
    } catch (error) {
        wrong = `${error.name}: ${error.message}`.split('\n')[0].slice(0, 160);
    }
    console.log(JSON.stringify({ client: `${client} (npm)`, version: version(client), call, wrong }));
}

const openai = new OpenAI({ baseURL: `${root}/v1`, apiKey: 'none', maxRetries: 0 });
const model = 'bn-demo';
await trial('openai', 'chat', async () => {
    const made = await openai.chat.completions.create({ model, messages: asked, temperature: 0 });
    assert.equal(made.choices[0].message.content, '42');
});
await trial('openai', 'chat, streamed', async () => {
    let text = '';
    for await (const part of await openai.chat.completions.create({ model, messages: asked, temperature: 0, stream: true }))
        text += part.choices[0]?.delta?.content ?? '';
    assert.equal(text, '42');
});
await trial('openai', 'chat, tools', async () => {
    const tools = [{ type: 'function', function: { name: 'place', parameters: schema } }];
    const made = await openai.chat.completions.create({ model, messages: asked, tools, tool_choice: 'required', parallel_tool_calls: false });
    assert.ok(['Paris', 'Rome'].includes(JSON.parse(made.choices[0].message.tool_calls[0].function.arguments).city));
});
await trial('openai', 'responses, streamed', async () => {
    let text = '';
    for await (const event of await openai.responses.create({ model, input: '17+25=', temperature: 0, stream: true }))
        if (event.type === 'response.output_text.delta') text += event.delta;
    assert.equal(text, '42');
});
await trial('openai', 'embeddings', async () => {
    const made = await openai.embeddings.create({ model, input: ['one', 'two'] });
    assert.equal(made.data[1].embedding.length, 256);
});
await trial('openai', 'models', async () => {
    assert.equal((await openai.models.list()).data[0].id, model);
});

const anthropic = new Anthropic({ baseURL: root, apiKey: 'none', maxRetries: 0 });
await trial('@anthropic-ai/sdk', 'messages', async () => {
    const made = await anthropic.messages.create({ model, messages: asked, max_tokens: 8 });
    assert.equal(made.role, 'assistant');
});
await trial('@anthropic-ai/sdk', 'messages, streamed', async () => {
    const final = await anthropic.messages.stream({ model, messages: asked, max_tokens: 8 }).finalMessage();
    assert.ok(final.usage.output_tokens > 0);
});
await trial('@anthropic-ai/sdk', 'models', async () => {
    assert.equal((await anthropic.models.list()).data[0].display_name, model);
});

const compatible = createOpenAICompatible({ name: 'bn', baseURL: `${root}/v1`, supportsStructuredOutputs: true });
await trial('ai', 'generateText', async () => {
    assert.equal((await generateText({ model: compatible(model), prompt: '17+25=', temperature: 0 })).text, '42');
});
await trial('ai', 'streamText', async () => {
    let text = '';
    for await (const part of streamText({ model: compatible(model), prompt: '17+25=', temperature: 0 }).textStream) text += part;
    assert.equal(text, '42');
});
await trial('ai', 'generateText, tools', async () => {
    const tools = { place: tool({ inputSchema: jsonSchema(schema) }) };
    const made = await generateText({ model: compatible(model), prompt: '17+25=', tools, toolChoice: 'required' });
    assert.equal(made.toolCalls[0].toolName, 'place');
});
await trial('ai', 'generateText, an object as its output', async () => {
    const output = Output.object({ schema: jsonSchema(schema) });
    const made = await generateText({ model: compatible(model), prompt: '17+25=', output });
    assert.ok(['Paris', 'Rome'].includes(made.output.city));
});
await trial('ai', 'embedMany', async () => {
    const made = await embedMany({ model: compatible.textEmbeddingModel(model), values: ['one', 'two'] });
    assert.equal(made.embeddings[1].length, 256);
});

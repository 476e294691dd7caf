"""A model at an address: OpenAI's API over HTTP, and a page. Start with `app`; `scheduler` is the heart of it.

limits       what a client may ask for, and how many at once
problems     an error in OpenAI's shape
body         bytes to JSON that can be trusted to be text
schema       what a request may say; anything else is refused by name
settings     a request as prompts and `Sampling`
engine       one model's texts, joined, stepped and left: the compiled kernel, or torch
choosing     a token where the kernel leaves the choice: rules, penalties
line         one text on its way from tokens to what a client is sent
scheduler    the thread that owns the engines
shelf        runs by name, their checkpoints, and new ones that are taken up
answers      completions and chat, whole and streamed
reading      prompts and texts with what each token cost
guard        who may ask: host, origin, key, size
figures      what /metrics tells
app          the routes
connection   a client that is slow, or stops
server       uvicorn: binds, drains, ends
pages        what only the page at / asks for

No other room imports this one, and nothing here is imported before `gpt serve` runs.
"""

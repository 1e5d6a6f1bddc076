// Sends a token to the controller, which stores it in a cookie that no script can read.
const why = document.getElementById("why");
const form = document.getElementById("login");

const told = await fetch("/api/session");
if (told.ok) location.reload();
const refused = await told.json();
why.textContent = refused.message;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = document.getElementById("token").value;
  const answer = await fetch("/api/login", {
    method: "POST",
    headers: {"content-type": "application/json"},
    body: JSON.stringify({token}),
  }).catch(() => null);
  if (answer?.ok) location.reload();
  else why.textContent = answer ? (await answer.json()).message : "the controller does not answer";
});

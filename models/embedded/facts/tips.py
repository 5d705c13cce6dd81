# ruff: noqa: E501 -- a tip stays on its line, and so do questions that belong together
"""Tips: for each goal a few, with the paragraph that expands one and the clause that sums it up."""

from typing import NamedTuple

__all__ = ["TIPS", "Tip"]


class Tip(NamedTuple):
    """One tip: `clause` is a whole clause that starts with a gerund."""

    goal: str
    title: str
    clause: str
    paragraph: str


_TABLE = """
# staying healthy
Balanced Diet|eating a balanced diet gives your body the nutrients it needs|A balanced diet gives your body the nutrients it needs to work well. Eat plenty of fruit, vegetables, whole grains and lean protein, and keep sugar and salt low. Small changes that you can keep up matter more than strict rules.
Regular Exercise|exercising regularly keeps your heart and muscles strong|Regular exercise keeps your heart and muscles strong and lifts your mood. Aim for about thirty minutes of movement on most days, such as a brisk walk, a swim or a bike ride. Choose something you enjoy, because then you will keep doing it.
Enough Sleep|sleeping enough lets your body and mind recover|Enough sleep lets your body and mind recover from the day. Most adults need seven to nine hours a night, at about the same times. A dark, cool and quiet room makes it easier to fall asleep.
Drink Water|drinking enough water keeps your body working smoothly|Drinking enough water keeps your body working smoothly. Have a glass with every meal and keep a bottle close by during the day. When it is hot or when you exercise, drink a little more.
Stress Management|managing stress protects your heart and your mood|Managing stress protects your heart and your mood. Take short breaks, breathe slowly, and talk to people you trust. A walk outside or a quiet hobby can calm you at the end of a hard day.
Regular Checkups|seeing a doctor regularly helps to find problems early|Regular checkups help to find problems early, when they are easy to treat. See your doctor once a year and your dentist twice, even if you feel well. Write down your questions before you go.
No Smoking|not smoking protects your lungs and your heart|Not smoking is one of the best things you can do for your lungs and your heart. If you smoke, set a date to stop and tell your friends about it. Your body begins to recover within a day.
Limit Alcohol|drinking less alcohol protects your liver and your sleep|Limiting alcohol protects your liver and your sleep. Keep several days a week free of it, and drink water in between. You will feel fresher in the morning and save money as well.
Wash Your Hands|washing your hands often keeps germs away|Washing your hands often keeps germs away from you and from others. Use soap for at least twenty seconds, before you eat and after you come home. It is simple, cheap and it works.
Fresh Air|spending time in fresh air clears your head|Fresh air clears your head and daylight helps your body to make vitamin D. Spend some time outside every day, even when the weather is grey. A short walk after lunch is a good start.
Social Contact|staying in touch with people keeps your mind healthy|Social contact keeps your mind healthy. Call a friend, eat with your family, or join a club near you. People who feel connected live longer and are ill less often.
# studying well
Make a Plan|making a plan shows you what to learn and when|A plan shows you what to learn and when. Write down your topics, split them into small parts, and give each part a day. Leave some room, because a few things always take longer.
Take Breaks|taking breaks keeps your mind fresh|Taking breaks keeps your mind fresh. Work for about half an hour, then stand up and move for five minutes. You will remember more than after hours without a pause.
Practice Tests|taking practice tests shows you what you do not know yet|Practice tests show you what you do not know yet. Close the book, answer the questions, and only then look at the solutions. Pulling facts from memory makes them stay there.
Quiet Place|learning in a quiet place helps you to focus|A quiet place helps you to focus. Clear your desk, put your phone in another room, and tell others when you do not want to be disturbed. Soon your mind will know that this is the place to learn.
Take Notes|taking notes in your own words makes ideas clear|Taking notes in your own words makes ideas clear. Write the main point of each section, not every sentence, and draw how things are connected. Read your notes again on the next day.
Teach Others|teaching others shows whether you understand a topic|Teaching others shows whether you understand a topic. Explain it to a friend in simple words and watch where you get stuck. Then go back and close that gap.
Spaced Repetition|repeating things after a while moves them into long memory|Spaced repetition moves facts into your long memory. Look at new material again after one day, after three days and after a week. Each time it will come back faster.
Start Early|starting early leaves time for questions|Starting early leaves time for questions and for mistakes. Begin with a small part on the first day, even if it is only ten minutes. A slow start is better than a rushed end.
Good Sleep|sleeping well fixes what you have learned|Good sleep fixes what you have learned during the day. Go to bed on time before an exam instead of reading all night. A rested mind thinks faster and forgets less.
# working well
Set Priorities|setting priorities makes sure the important work gets done|Setting priorities makes sure the important work gets done. Choose the three tasks that matter most each morning and begin with the hardest. Everything else can wait until they are finished.
Avoid Distractions|avoiding distractions lets you finish faster|Avoiding distractions lets you finish faster. Turn off alerts, close what you do not need, and read your mail only at fixed times. One hour of real focus is worth a whole busy afternoon.
Clear Goals|having clear goals tells you when you are done|Clear goals tell you when you are done. Write down what you want to reach, by when, and how you will measure it. Share the goal with your team so that everyone pulls the same way.
Short Meetings|keeping meetings short leaves time for real work|Short meetings leave time for real work. Invite only the people you need, send the questions before, and stop when they are answered. Write down who does what until when.
Tidy Desk|keeping a tidy desk saves time|A tidy desk saves time and keeps your thoughts in order. Give every thing its place and clean up for five minutes each evening. In the morning you can start at once.
Ask for Help|asking for help saves hours of guessing|Asking for help saves hours of guessing. When you are stuck for half an hour, tell a colleague what you tried and what happened. Most people like to help, and both of you will learn.
Regular Feedback|asking for feedback helps you to improve|Regular feedback helps you to improve. Show your work early, ask what could be better, and listen without defending yourself. Then change one thing at a time.
One Task at a Time|doing one task at a time keeps mistakes away|Doing one task at a time keeps mistakes away. Every switch costs minutes until you are back in the work. Finish one thing, or note where you stopped, and only then begin the next.
Learn Every Day|learning a little every day keeps your skills sharp|Learning a little every day keeps your skills sharp. Read an article, try a new tool, or ask a colleague how they do it. After a year the small steps add up.
# saving money
Make a Budget|making a budget shows where your money goes|A budget shows where your money goes. Write down what you earn and what you spend, and set a limit for each kind of cost. Check it once a week so that there are no surprises.
Cook at Home|cooking at home costs less than eating out|Cooking at home costs less than eating out, and you know what is in your food. Plan your meals for the week and buy only what is on your list. Make a little more and take it to work the next day.
Emergency Fund|building an emergency fund protects you from debt|An emergency fund protects you from debt when something breaks. Put a small amount aside every month until you have enough for three months. Keep it in an account that you do not touch.
Compare Prices|comparing prices before you buy avoids paying too much|Comparing prices avoids paying too much. Look at several shops before you buy anything expensive, and wait for a sale if you can. Often a used thing is just as good.
Avoid Debt|avoiding debt saves you the interest|Avoiding debt saves you the interest. Buy only what you can pay for now, and pay your cards in full each month. If you have debts, begin with the most expensive one.
Save Energy|saving energy lowers your bills|Saving energy lowers your bills and helps the planet. Turn off lights and machines that nobody uses, and heat only the rooms you live in. Good lamps and closed windows pay for themselves.
Cancel Subscriptions|cancelling subscriptions you do not use frees money each month|Cancelling subscriptions that you do not use frees money each month. Go through your account and mark everything that comes back regularly. Keep what you love and stop the rest today.
Wait Before Buying|waiting before buying stops you from wasting money|Waiting before buying stops you from wasting money. Sleep a night over small things and a month over big ones. Most wishes are gone by then, and the others are worth it.
Automatic Savings|saving automatically makes your savings grow without effort|Automatic savings grow without effort. Let your bank move a fixed amount on the day you are paid. What you never see you will not miss.
# sleeping better
Fixed Bedtime|keeping a fixed bedtime sets your inner clock|A fixed bedtime sets your inner clock. Go to bed and get up at the same times, also on the weekend. After two weeks you will become tired at the right hour.
No Screens|turning off screens early makes you tired in time|Turning off screens early makes you tired in time. Their bright light tells your brain that it is still day. Read a book or listen to calm music in the last hour.
Cool Room|keeping your room cool helps you to sleep deeply|A cool room helps you to sleep deeply. Open the window before you go to bed and keep it at about eighteen degrees. A light blanket is often enough.
Less Coffee|drinking less coffee makes it easier to fall asleep|Less coffee makes it easier to fall asleep. Have your last cup at noon, because it works for many hours. In the evening choose water or herbal tea.
Light Dinner|eating a light dinner lets your body rest at night|A light dinner lets your body rest at night. Eat at least two hours before bedtime and avoid heavy or spicy food. If you are hungry later, a banana will do.
# learning to program
Small Projects|building small projects teaches you more than reading|Small projects teach you more than reading. Build something you would use, such as a list of tasks or a little game. When it works, add one feature and begin again.
Read Code|reading code by others shows you new ways|Reading code by others shows you new ways to solve a problem. Choose a small project, run it, and follow one call from start to end. Ask yourself why it was written like that.
Write Tests|writing tests tells you when something breaks|Tests tell you when something breaks. Write down what a function promises before you write the function. Then you can change your code without fear.
Practice Daily|practicing daily turns rules into habits|Practicing daily turns rules into habits. Write a few lines every day, even if you have only twenty minutes. A short daily session beats one long day a week.
Use Version Control|using version control lets you undo mistakes|Version control lets you undo mistakes. Save your work in small steps and write why you made each change. You can then try ideas without losing what worked.
Debug Patiently|debugging patiently leads you to the real cause|Debugging patiently leads you to the real cause. Make the error happen again, change one thing at a time, and look at the values. The bug is usually where you did not look.
# protecting the environment
Recycle|recycling turns waste into new things|Recycling turns waste into new things. Sort paper, glass, metal and plastic, and find out what your town collects. Even better is to use a thing twice before you throw it away.
Use Public Transport|using public transport keeps the air clean|Public transport keeps the air clean and the roads free. Take the bus or the train for your daily way when you can. You can read or rest while somebody else drives.
Save Water|saving water protects rivers and lakes|Saving water protects rivers and lakes. Take short showers, close the tap while you brush your teeth, and fix what drips. Rain is good enough for the garden.
Plant Trees|planting trees cleans the air and cools the city|Planting trees cleans the air and cools the city. Put one in your garden or help a group that plants them. Choose a kind that grows in your region anyway.
Eat Less Meat|eating less meat saves land and water|Eating less meat saves land and water. Try two days a week with beans, lentils or eggs instead. Many good dishes from around the world need no meat at all.
Avoid Plastic|avoiding plastic keeps the oceans clean|Avoiding plastic keeps the oceans clean. Bring your own bag and bottle, and choose food without a wrapper. Things that last are cheaper in the end.
# speaking in public
Know Your Audience|knowing your audience helps you to choose the right words|Knowing your audience helps you to choose the right words. Find out who will listen, what they know, and what they need. Then leave out everything else.
Practice Aloud|practicing aloud makes you sure of your words|Practicing aloud makes you sure of your words. Give your talk to an empty room, then to a friend, and watch the time. By the third time you will need no notes.
Speak Slowly|speaking slowly gives people time to follow|Speaking slowly gives people time to follow. Pause after each important point and breathe. What feels too slow to you is just right for them.
Eye Contact|making eye contact keeps people with you|Eye contact keeps people with you. Look at one person for a sentence and then at another one. They will feel that you talk to them and not to the wall.
Tell a Story|telling a story makes people remember your point|Telling a story makes people remember your point. Begin with a person and a problem, and end with what changed. One good example is worth ten numbers.
# making friends
Be Kind|being kind makes people feel safe with you|Being kind makes people feel safe with you. Say thank you, remember small things, and help before you are asked. Kindness costs little and comes back.
Listen Well|listening well shows people that they matter|Listening well shows people that they matter. Put your phone away, ask questions, and let them finish. You will learn more than by talking.
Join a Club|joining a club brings you together with people like you|Joining a club brings you together with people who like what you like. Choose sport, music, games or something you always wanted to try. Come back every week, because friendship takes time.
Say Yes|saying yes to invitations opens new doors|Saying yes to invitations opens new doors. Go even if you are a little tired or know only one person. Some of the best evenings begin that way.
Keep in Touch|keeping in touch lets friendships last|Keeping in touch lets friendships last. Send a short message when you think of somebody, and remember birthdays. A call once a month is enough.
"""


def _read() -> tuple[Tip, ...]:
    """Read the table: a line `# goal` opens each group."""
    tips: list[Tip] = []
    goal = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith("# "):
            goal = line[2:]
        else:
            title, clause, paragraph = line.split("|")
            tips.append(Tip(goal, title, clause, paragraph))
    return tuple(tips)


TIPS = _read()
